#include "ckpt/verify/repair.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include "ckpt/io/crc32.hpp"
#include "helpers.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;

using ::testing::ElementsAre;
using testing::error_of;
using testing::flat_split;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::read_file;
using testing::TempDir;
using testing::Truth;
using testing::write_checkpoint;
using testing::write_file;

const std::vector<Truth> kTruths = {Truth::make({"model", "a"}, DType::kFloat32, {300, 200}, 1),
                                    Truth::make({"model", "a.b", std::int64_t{0}}, DType::kBool, {}, 2),
                                    Truth::make({"model", "none"}, DType::kInt64, {0, 4}, 3),
                                    Truth::make({"model", "z"}, DType::kFloat8E4M3FN, {7, 3, 5}, 4)};
const std::vector<DcpItem> kObjects = {{{"groups", std::int64_t{0}, "lr"}, 0.5}, {{"step"}, 7}};

class RepairTest : public ::testing::Test {
 protected:
  void SetUp() override {
    write_checkpoint(path(), kTruths, flat_split(kTruths, 3), kObjects);
    metadata_ = read_file(path() / ".metadata");
    fs::remove(path() / ".metadata");
  }

  [[nodiscard]] fs::path path() const { return dir_ / "c"; }

  std::vector<std::string> findings() {
    std::vector<std::string> texts;
    for (const Finding& finding : scan_for_repair(path(), {}).findings) texts.push_back(to_string(finding));
    return texts;
  }

  void change(const std::string& name, std::size_t at, std::string_view text) {
    std::string data = read_file(path() / name);
    data.replace(at, text.size(), text);
    write_file(path() / name, data);
  }

  TempDir dir_;
  std::string metadata_;
};

TEST_F(RepairTest, RebuildsTheVeryBytesThatWereLost) {
  const RepairScan scan = scan_for_repair(path(), {.threads = 2});
  EXPECT_THAT(scan.findings, IsEmpty());
  EXPECT_EQ(scan.tensors, 4U);
  EXPECT_EQ(scan.objects, 2U);
  write_dcp_metadata(path(), scan.plans);
  EXPECT_EQ(read_file(path() / ".metadata"), metadata_);
}

RC_GTEST_PROP(RepairPropertyTest, AnySplitIsRebuilt, ()) {
  const TempDir dir;
  std::vector<Truth> truths;
  const auto count = *rc::gen::inRange<std::size_t>(1, 4);
  for (std::size_t t = 0; t < count; ++t) {
    const auto shape = *rc::gen::container<Dims>(rc::gen::inRange<std::int64_t>(0, 6));
    if (shape.size() > 4) return;
    truths.push_back(Truth::make({"t" + std::to_string(t)}, DType::kInt16, shape, 9));
  }
  const auto ranks = *rc::gen::inRange<std::size_t>(1, 6);
  write_checkpoint(dir / "c", truths, flat_split(truths, ranks), kObjects);
  const std::string expected = read_file(dir / "c/.metadata");
  const RepairScan scan = scan_for_repair(dir / "c", {});
  RC_ASSERT(scan.findings.empty());
  RC_ASSERT(encode_dcp_metadata(scan.plans) == expected);
}

TEST_F(RepairTest, AMissingFileIsNamedWithWhatItHeld) {
  fs::remove(path() / "__1_0.distcp");
  EXPECT_THAT(
      findings(),
      ElementsAre(HasSubstr("hole: 'model.a': the chunks cover 40000 of 60000"), HasSubstr("hole: 'model.z'"),
                  HasSubstr("missing-file: __1_0.distcp: is not there, but __2_0.distcp is")));
}

TEST_F(RepairTest, TheLastRanksFileMissing) {
  fs::remove(path() / "__2_0.distcp");
  EXPECT_THAT(findings(), ElementsAre(HasSubstr("hole: 'model.a'"), HasSubstr("hole: 'model.z'")));
}

TEST_F(RepairTest, AFlippedByteOfData) {
  change("__1_0.distcp", read_file(path() / "__1_0.distcp").find(kTruths[0].data.substr(80'000, 64)), "\x7f");
  EXPECT_THAT(findings(), ElementsAre(HasSubstr("'model.a': record 'archive/data/0' has CRC")));
}

TEST_F(RepairTest, ADamagedRecord) {
  change("__0_0.distcp", 30, "\x7f");
  EXPECT_THAT(findings(),
              ::testing::Contains(HasSubstr("broken: __0_0.distcp, bytes 0 to 128: an item record has "
                                            "the wrong checksum")));
}

TEST_F(RepairTest, ATruncatedFile) {
  const std::uint64_t bytes = fs::file_size(path() / "__2_0.distcp");
  fs::resize_file(path() / "__2_0.distcp", bytes - 1);
  EXPECT_THAT(findings(), ::testing::Contains(HasSubstr("item 'model.z' ends at byte")));
  // Just the last item cut off, cleanly.
  const std::string data = read_file(path() / "__2_0.distcp");
  const std::size_t last = data.rfind("ACCELREC");
  fs::resize_file(path() / "__2_0.distcp", last);
  EXPECT_THAT(findings(), ElementsAre(HasSubstr("hole: 'model.z'"),
                                      HasSubstr("truncated: __2_0.distcp: has 3 of 4 items")));
}

TEST_F(RepairTest, FilesThatWereRenamedOrAreNotOurs) {
  fs::rename(path() / "__2_0.distcp", path() / "__3_0.distcp");
  write_file(path() / "__0_1.distcp", "x");
  write_file(path() / "__02_0.distcp", "x");
  const std::vector<std::string> found = findings();
  EXPECT_THAT(found,
              ::testing::Contains(HasSubstr("__3_0.distcp, bytes 0 to 128: the item record is of rank 2")));
  EXPECT_THAT(found, ::testing::Contains(HasSubstr("__0_1.distcp: is not named as")));
  EXPECT_THAT(found, ::testing::Contains(HasSubstr("__02_0.distcp: is not named as")));
  EXPECT_THAT(found, ::testing::Contains(HasSubstr("missing-file: __2_0.distcp")));
}

TEST_F(RepairTest, AFileWithoutRecords) {
  write_file(path() / "__0_0.distcp", std::string(100, 'P'));
  EXPECT_THAT(findings(), ::testing::Contains(HasSubstr("does not begin with an item record")));
}

TEST_F(RepairTest, RanksThatDisagree) {
  const std::vector<Truth> others = {Truth::make({"model", "a"}, DType::kFloat64, {300, 200}, 1), kTruths[1],
                                     kTruths[2], kTruths[3]};
  write_checkpoint(dir_ / "other", others, flat_split(others, 3));
  fs::copy_file(dir_ / "other/__1_0.distcp", path() / "__1_0.distcp", fs::copy_options::overwrite_existing);
  EXPECT_THAT(findings(), ElementsAre(HasSubstr("mismatch: 'model.a': two files have it")));
}

TEST_F(RepairTest, FindsWhatNeedsRepair) {
  EXPECT_THAT(find_repairable(dir_.path(), false), ElementsAre(path()));
  EXPECT_THAT(find_repairable(path(), false), ElementsAre(path()));
  write_file(path() / ".metadata", "no pickle");
  EXPECT_THAT(find_repairable(path(), false), ElementsAre(path()));
  write_file(path() / ".metadata", metadata_);
  EXPECT_THAT(error_of(ErrorKind::kFailure, [&] { (void)find_repairable(path(), false); }),
              HasSubstr("needs no repair"));
  EXPECT_THAT(find_repairable(path(), true), ElementsAre(path()));
  fs::create_directory(dir_ / "empty");
  EXPECT_THAT(error_of(ErrorKind::kMissing, [&] { (void)find_repairable(dir_ / "empty", false); }),
              HasSubstr("has no data files"));
  EXPECT_THAT(error_of(ErrorKind::kMissing, [&] { (void)find_repairable(dir_ / "none", false); }),
              HasSubstr("is not there"));
}

TEST_F(RepairTest, ASaveThatHasNotFinishedIsLeftAloneUnlessItIsNamed) {
  fs::create_directory(dir_ / "checkpoint_5.incomplete");
  fs::rename(path(), dir_ / "checkpoint_5.incomplete/c");
  EXPECT_THAT(error_of(ErrorKind::kMissing, [&] { (void)find_repairable(dir_.path(), false); }),
              HasSubstr("has no data files"));
  EXPECT_THAT(find_repairable(dir_ / "checkpoint_5.incomplete", false),
              ElementsAre(dir_ / "checkpoint_5.incomplete/c"));
}

TEST_F(RepairTest, AnEmptyModelIsNotSaidToNeedNoRepair) {
  write_checkpoint(dir_ / "optimizer_0", kTruths, flat_split(kTruths, 1));
  fs::rename(path(), dir_ / "pytorch_model_fsdp_0");
  for (const auto& entry : fs::directory_iterator(dir_ / "pytorch_model_fsdp_0")) fs::remove(entry.path());
  EXPECT_THAT(error_of(ErrorKind::kMissing, [&] { (void)find_repairable(dir_.path(), false); }),
              HasSubstr("pytorch_model_fsdp_0' holds no checkpoint"));
}

TEST_F(RepairTest, AShardOfAnotherSaveIsNoPartOfIt) {
  const auto listed = [&](const std::string& name) {
    const std::string data = read_file(path() / name);
    return fmt::format(R"({{"name": "c/{}", "bytes": {}, "crc32": {}}})", name, data.size(),
                       crc32(std::as_bytes(std::span(data))));
  };
  const auto write_manifest = [&] {
    write_file(dir_ / "accel_manifest.json",
               fmt::format(R"({{"version": 1, "files": [{}, {}, {}], "tensors": {{}}}})",
                           listed("__0_0.distcp"), listed("__1_0.distcp"), listed("__2_0.distcp")));
  };
  write_manifest();
  EXPECT_THAT(findings(), IsEmpty());
  const TempDir other;
  std::vector<Truth> truths = kTruths;
  truths[0] = Truth::make({"model", "a"}, DType::kFloat32, {300, 200}, 77);
  write_checkpoint(other.path(), truths, flat_split(truths, 3), kObjects);
  write_file(path() / "__1_0.distcp", read_file(other / "__1_0.distcp"));
  EXPECT_THAT(findings(), ElementsAre(HasSubstr("is not the file that was saved")));
}

}  // namespace
}  // namespace accel::ckpt
