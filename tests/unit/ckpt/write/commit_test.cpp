#include "ckpt/write/commit.hpp"

#include <gmock/gmock.h>

#include "ckpt/convert/merge.hpp"
#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using testing::flat_split;
using ::testing::HasSubstr;
using testing::names_in;
using testing::read_file;
using testing::TempDir;
using testing::Truth;
using testing::write_checkpoint;
using testing::write_file;

class OutputCommitTest : public ::testing::Test {
 protected:
  OutputCommitTest() {
    const std::vector<Truth> truths{Truth::make({"model", "a"}, DType::kFloat32, {5, 7}, 1),
                                    Truth::make({"model", "b"}, DType::kFloat32, {5, 7}, 50)};
    write_checkpoint(dir_ / "c", truths, flat_split(truths, 2));
    source_ = open_checkpoint(dir_ / "c");
    target_.path = dir_ / "out";
    target_.belongs = [](std::string_view name) {
      return WeightFiles{"model", ".safetensors"}.belongs(std::string(name));
    };
  }

  void write(std::uint64_t max_shard_bytes, const WriteLimits& limits = {}) {
    MergeOptions options;
    options.max_shard_bytes = max_shard_bytes;
    Progress progress("", 0, Progress::Mode::kOff);
    write_output(*source_, plan_merge(*source_, options).output, target_, limits, progress);
  }

  TempDir dir_;
  std::unique_ptr<Checkpoint> source_;
  OutputTarget target_;
};

TEST_F(OutputCommitTest, MakesTheDirectoriesAbove) {
  target_.path = dir_ / "deep/er/out";
  write(0);
  EXPECT_THAT(names_in(target_.path), ElementsAre("model.safetensors"));
}

TEST_F(OutputCommitTest, RefusesWhatIsThere) {
  write(0);
  const std::string before = read_file(dir_ / "out/model.safetensors");
  EXPECT_THAT(error_of(ErrorKind::kFailure, [&] { write(0); }), HasSubstr("already there"));
  // Shards beside an older single file would be two models in one directory.
  EXPECT_THAT(error_of(ErrorKind::kFailure, [&] { write(150); }), HasSubstr("already there"));
  EXPECT_EQ(read_file(dir_ / "out/model.safetensors"), before);
  EXPECT_THAT(names_in(dir_ / "out"), ElementsAre("model.safetensors"));
}

TEST_F(OutputCommitTest, ReplacesAnOlderOutputOfOtherShards) {
  write(150);
  write_file(dir_ / "out/config.json", "mine");
  target_.existing = AtomicFile::Existing::kReplace;
  write(0);
  EXPECT_THAT(names_in(dir_ / "out"), ElementsAre("config.json", "model.safetensors"));
  EXPECT_EQ(read_file(dir_ / "out/config.json"), "mine");
  EXPECT_THAT(names_in(dir_.path()), ElementsAre("c", "out"));
}

TEST_F(OutputCommitTest, CopiesAssets) {
  write_file(dir_ / "config.json", "{}");
  target_.assets = {dir_ / "config.json"};
  write(0);
  EXPECT_EQ(read_file(dir_ / "out/config.json"), "{}");
}

TEST_F(OutputCommitTest, AFailureLeavesNothing) {
  std::filesystem::resize_file(dir_ / "c/__1_0.distcp", 10);
  (void)error_of(ErrorKind::kCorrupt, [&] { write(0); });
  EXPECT_THAT(names_in(dir_.path()), ElementsAre("c"));
}

TEST_F(OutputCommitTest, OneFileIsOneFile) {
  target_.path = dir_ / "m.safetensors";
  target_.is_file = true;
  write(0);
  EXPECT_THAT(names_in(dir_.path()), ElementsAre("c", "m.safetensors"));
  target_.path = dir_ / "n.safetensors";
  (void)error_of(ErrorKind::kUsage, [&] { write(150); });
}

TEST_F(OutputCommitTest, RefusesTooLittleMemory) {
  (void)error_of(ErrorKind::kUsage, [&] { write(0, {.memory_bytes = 1'000'000, .threads = 1}); });
  (void)error_of(ErrorKind::kUsage, [&] { write(0, {.memory_bytes = kLeastWriteMemory, .threads = 2}); });
}

TEST_F(OutputCommitTest, NeverReplacesWhatItIsMadeFrom) {
  write(0);
  const std::string before = read_file(dir_ / "out/model.safetensors");
  source_ = open_checkpoint(dir_ / "out/model.safetensors");
  target_.existing = AtomicFile::Existing::kReplace;
  const auto refusal = [&] { return error_of(ErrorKind::kUsage, [&] { write(0); }); };
  EXPECT_THAT(refusal(),
              HasSubstr("out/model.safetensors' would be replaced, but the output is made from it"));
  target_.path = dir_ / "out/model.safetensors";
  target_.is_file = true;
  EXPECT_THAT(refusal(), HasSubstr("would be replaced"));
  std::filesystem::create_symlink(dir_ / "out/model.safetensors", dir_ / "link.safetensors");
  source_ = open_checkpoint(dir_ / "link.safetensors");
  EXPECT_THAT(refusal(), HasSubstr("would be replaced"));
  EXPECT_EQ(read_file(dir_ / "out/model.safetensors"), before);
  // A sharded checkpoint's directory gets another file, and keeps its own.
  source_ = open_checkpoint(dir_ / "c");
  target_.path = dir_ / "c";
  target_.is_file = false;
  write(0);
  write(0);
  EXPECT_EQ(read_file(dir_ / "c/model.safetensors"), before);
  target_.belongs = [](std::string_view) { return true; };
  EXPECT_THAT(refusal(), HasSubstr("/.metadata' would be replaced"));
}

}  // namespace
}  // namespace accel::ckpt
