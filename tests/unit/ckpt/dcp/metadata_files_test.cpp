#include "ckpt/dcp/metadata_files.hpp"

#include <gmock/gmock.h>

#include "ckpt/read/kind.hpp"
#include "ckpt/read/openers.hpp"
#include "opened.hpp"

namespace accel::ckpt {
namespace {

using testing::bytes_of;
using testing::error_of;
using ::testing::HasSubstr;
using testing::read_file;
using testing::TempDir;
using testing::Truth;
using testing::write_file;

// The metadata of a rank that has rows [rank, rank + 1) of `w`, all of `all`, and an object.
DcpMetadata rank_metadata(int rank) {
  const std::string name = "__" + std::to_string(rank) + "_0.distcp";
  const std::vector<DcpFiles::Entry> files{{name, 0}};
  DcpMetadata metadata;
  metadata.version = "1.0.0";
  metadata.files.push_back(std::make_shared<const DcpFiles>(files, std::vector<std::vector<std::string>>(1)));
  const DcpFile* file = &(*metadata.files[0])[0];
  metadata.objects = {{"lr", {"lr"}, {file, 200, 10}}};
  metadata.tensors = {{"all", {"all"}, DType::kInt64, {5}, {}, 1, {}},
                      {"w", {"m", "w"}, DType::kFloat32, {3, 4}, {}, 0, {}}};
  metadata.tensors[0].chunks.add({Box::whole({5}), {file, 100, 90}});
  metadata.tensors[1].chunks.add({Box{{rank, 0}, {1, 4}}, {file, 0, 90}});
  return metadata;
}

TEST(DcpMetadataFilesTest, RanksAreMerged) {
  const DcpMetadata found = merge_rank_metadata({rank_metadata(0), rank_metadata(1), rank_metadata(2)});
  ASSERT_EQ(found.tensors.size(), 2U);
  const DcpTensor& all = found.tensors[0];
  EXPECT_EQ(all.fqn, "all");
  EXPECT_EQ(all.position, 1U);
  ASSERT_EQ(all.chunks.size(), 1U);
  EXPECT_EQ(all.chunks[0].where.file(), "__0_0.distcp");
  ASSERT_EQ(all.copies.size(), 2U);
  EXPECT_EQ(all.copies[1].where.file(), "__2_0.distcp");
  const DcpTensor& w = found.tensors[1];
  EXPECT_EQ(w.position, 0U);
  EXPECT_EQ(w.chunks.size(), 3U);
  EXPECT_TRUE(w.copies.empty());
  ASSERT_EQ(found.objects.size(), 1U);
  EXPECT_EQ(found.objects[0].where.file(), "__0_0.distcp");
  ASSERT_EQ(found.objects[0].copies.size(), 2U);
  EXPECT_EQ(found.objects[0].copies[1].file(), "__2_0.distcp");
  EXPECT_EQ(found.version, "1.0.0");
}

TEST(DcpMetadataFilesTest, ATensorOfALaterRankComesBehind) {
  DcpMetadata second = rank_metadata(1);
  DcpTensor first{"a", {"a"}, DType::kBool, {}, {}, 2, {}};
  first.chunks.add({Box{}, {&(*second.files[0])[0], 0, 1}});
  second.tensors.insert(second.tensors.begin(), std::move(first));
  const DcpMetadata found = merge_rank_metadata({rank_metadata(0), second});
  EXPECT_EQ(found.tensors[0].fqn, "a");
  EXPECT_EQ(found.tensors[0].position, 2U);
}

TEST(DcpMetadataFilesTest, RejectsRanksThatDisagree) {
  DcpMetadata other = rank_metadata(1);
  other.tensors[0].shape = {6};
  EXPECT_THAT(error_of(ErrorKind::kCorrupt,
                       [&] {
                         (void)merge_rank_metadata({rank_metadata(0), other});
                       }),
              HasSubstr("'all' is int64 [5] on one rank, int64 [6] on rank 1"));
  other = rank_metadata(1);
  other.tensors[0].dtype = DType::kInt32;
  EXPECT_THROW((void)merge_rank_metadata({rank_metadata(0), other}), Error);
  other = rank_metadata(1);
  other.objects[0].fqn = "w";
  EXPECT_THAT(error_of(ErrorKind::kCorrupt,
                       [&] {
                         (void)merge_rank_metadata({rank_metadata(0), other});
                       }),
              HasSubstr("'w' is a tensor on one rank"));
}

class DcpRankFilesTest : public ::testing::Test {
 protected:
  // Every rank writes all of the tensor, and its own metadata.
  void save(int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<DcpItem> items{
          {truth_.path, TensorChunk{truth_.dtype, truth_.shape, Box::whole(truth_.shape)}}};
      const DcpRankPlan plan = plan_dcp_rank(rank, std::move(items));
      write_dcp_rank(directory_.path(), plan, [&](std::size_t) { return bytes_of(truth_.data); });
      write_file(directory_.path() / ("__" + std::to_string(rank) + ".metadata"),
                 encode_dcp_metadata({&plan, 1}));
    }
  }
  [[nodiscard]] std::string missing() const {
    return error_of(ErrorKind::kMissing, [&] { (void)read_dcp_metadata(directory_.path()); });
  }

  TempDir directory_;
  Truth truth_ = Truth::make({"w"}, DType::kFloat32, {2, 3}, 7);
};

TEST_F(DcpRankFilesTest, AreADcpCheckpoint) {
  EXPECT_FALSE(has_dcp_metadata(directory_.path()));
  save(3);
  EXPECT_TRUE(has_dcp_metadata(directory_.path()));
  EXPECT_EQ(kind_of(directory_.path()), Kind::kDcp);
  const auto checkpoint = open_dcp(directory_.path());
  EXPECT_EQ(testing::read_tensor(*checkpoint, "w"), truth_.data);
  const StoredTensor stored = checkpoint->locate(0);
  ASSERT_EQ(stored.copies.size(), 2U);
  EXPECT_EQ(stored.copies[0].file, "__1_0.distcp");
}

TEST_F(DcpRankFilesTest, AMissingOneIsAnError) {
  save(3);
  std::filesystem::remove(directory_.path() / "__1.metadata");
  EXPECT_THAT(missing(), HasSubstr("has no __1.metadata"));
}

TEST_F(DcpRankFilesTest, AMissingLastOneShowsByItsData) {
  save(3);
  std::filesystem::remove(directory_.path() / "__2.metadata");
  EXPECT_THAT(missing(), HasSubstr("has no __2.metadata"));
}

TEST_F(DcpRankFilesTest, TheGlobalFileCounts) {
  save(2);
  std::filesystem::copy(directory_.path() / "__1.metadata", directory_.path() / ".metadata");
  const DcpMetadata found = read_dcp_metadata(directory_.path());
  EXPECT_EQ(found.tensors[0].chunks[0].where.file(), "__1_0.distcp");
  EXPECT_TRUE(found.tensors[0].copies.empty());
}

TEST_F(DcpRankFilesTest, OtherNamesAreNone) {
  for (const char* name : {"__x.metadata", "__01.metadata", "__.metadata", "_1.metadata", "__1.metadata.tmp",
                           "__99999999999.metadata"}) {
    write_file(directory_.path() / name, "");
  }
  EXPECT_FALSE(has_dcp_metadata(directory_.path()));
  EXPECT_THAT(missing(), HasSubstr("it has no .metadata"));
}

TEST_F(DcpRankFilesTest, ABrokenOneIsNamed) {
  save(2);
  write_file(directory_.path() / "__1.metadata", read_file(directory_.path() / "__1.metadata").substr(0, 40));
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)read_dcp_metadata(directory_.path()); }),
              HasSubstr("__1.metadata"));
}

}  // namespace
}  // namespace accel::ckpt
