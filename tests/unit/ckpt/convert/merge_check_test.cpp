#include "ckpt/convert/merge_check.hpp"

#include <gmock/gmock.h>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::error_of;
using testing::flat_split;
using ::testing::HasSubstr;
using testing::read_file;
using testing::TempDir;
using testing::Truth;
using testing::write_checkpoint;
using testing::write_file;

class MergeCheckTest : public ::testing::Test {
 protected:
  explicit MergeCheckTest() {
    const std::vector<Truth> truths{Truth::make({"model", "a"}, DType::kFloat32, {40, 3}, 1),
                                    Truth::make({"model", "b"}, DType::kInt64, {5}, 99)};
    write_checkpoint(dir_ / "c", truths, flat_split(truths, 2));
    source_ = open_checkpoint(dir_ / "c");
    target_.path = dir_ / "out";
  }

  void merge(const MergeOptions& options) {
    plan_ = plan_merge(*source_, options);
    write_output(*source_, plan_.output, target_, {}, progress_);
  }
  void check() { check_merged(*source_, plan_, target_, progress_); }
  // Changes the last byte of the file.
  void spoil(std::string_view name) {
    std::string bytes = read_file(dir_ / "out" / name);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    write_file(dir_ / "out" / name, bytes);
  }

  TempDir dir_;
  std::unique_ptr<Checkpoint> source_;
  OutputTarget target_;
  MergePlan plan_;
  Progress progress_{"", 0, Progress::Mode::kOff};
};

TEST_F(MergeCheckTest, AcceptsWhatAMergeWrites) {
  MergeOptions options;
  options.selection.dtype = DType::kFloat16;
  options.max_shard_bytes = 100;
  merge(options);
  check();
}

TEST_F(MergeCheckTest, AcceptsAFileOfItsOwnName) {
  target_.path = dir_ / "m.safetensors";
  target_.is_file = true;
  merge({});
  check();
}

TEST_F(MergeCheckTest, FindsOneWrongByte) {
  merge({});
  spoil("model.safetensors");
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { check(); }), HasSubstr("1 elements differ"));
}

TEST_F(MergeCheckTest, FindsAMissingTensor) {
  merge({});
  plan_.state.tensors[0].path = {"other"};
  EXPECT_THAT(error_of(ErrorKind::kMissing, [&] { check(); }), HasSubstr("'other'"));
}

TEST_F(MergeCheckTest, FindsAnotherType) {
  merge({});
  plan_.state.tensors[0].dtype = DType::kFloat16;
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { check(); }), HasSubstr("written as float32"));
}

TEST_F(MergeCheckTest, ASoundSourceIsAccepted) { check_source(*source_, Progress::Mode::kOff, true); }

TEST_F(MergeCheckTest, ADamagedSourceIsNamed) {
  std::string bytes = read_file(dir_ / "c/__0_0.distcp");
  char& value = bytes[source_->locate(0).extents.front().offset];
  value = static_cast<char>(value ^ 1);
  write_file(dir_ / "c/__0_0.distcp", bytes);
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { check_source(*source_, Progress::Mode::kOff, true); }),
              HasSubstr("__0_0.distcp"));
  std::filesystem::remove(dir_ / "c/__0_0.distcp");
  EXPECT_THAT(error_of(ErrorKind::kMissing, [&] { check_source(*source_, Progress::Mode::kOff, true); }),
              HasSubstr("missing-file: __0_0.distcp"));
}

}  // namespace
}  // namespace accel::ckpt
