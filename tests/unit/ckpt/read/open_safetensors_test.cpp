#include <gmock/gmock.h>

#include "ckpt/read/openers.hpp"
#include "opened.hpp"

namespace accel::ckpt {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::read_tensor;
using testing::TempDir;
using testing::Truth;
using testing::write_file;
using testing::write_safetensors;

class OpenSafetensorsTest : public ::testing::Test {
 protected:
  OpenSafetensorsTest() {
    write_safetensors(dir_ / "a.safetensors", {x_, empty_}, {{"format", "pt"}});
    write_safetensors(dir_ / "b.safetensors", {y_});
  }
  void write_index(const std::string& map) {
    write_file(dir_ / "model.safetensors.index.json", R"({"metadata": {}, "weight_map": {)" + map + "}}");
  }
  std::string rejection(ErrorKind kind) {
    return error_of(kind, [&] { (void)open_sharded_safetensors(dir_.path()); });
  }

  TempDir dir_;
  const Truth x_ = Truth::make({"x.w"}, DType::kFloat16, {2, 3}, 1);
  const Truth empty_ = Truth::make({"x.none"}, DType::kFloat32, {0}, 1);
  const Truth y_ = Truth::make({"y"}, DType::kInt64, {5}, 2);
};

TEST_F(OpenSafetensorsTest, OneFile) {
  const auto checkpoint = open_safetensors(dir_ / "a.safetensors");
  EXPECT_EQ(checkpoint->kind(), Kind::kSafetensors);
  EXPECT_EQ(read_tensor(*checkpoint, "x.w"), x_.data);
  EXPECT_EQ(read_tensor(*checkpoint, "x.none"), "");
  EXPECT_EQ(checkpoint->tensors()[0].path.size(), 1U);
  EXPECT_EQ(checkpoint->metadata().at("format"), "pt");
}

TEST_F(OpenSafetensorsTest, SeveralFilesWithAndWithoutAnIndex) {
  for (const bool indexed : {false, true}) {
    if (indexed) write_index(R"("x.w": "a.safetensors", "x.none": "a.safetensors", "y": "b.safetensors")");
    const auto checkpoint = open_sharded_safetensors(dir_.path());
    EXPECT_EQ(checkpoint->kind(), Kind::kSafetensorsSharded);
    EXPECT_EQ(read_tensor(*checkpoint, "x.w"), x_.data);
    EXPECT_EQ(read_tensor(*checkpoint, "y"), y_.data);
    EXPECT_EQ(checkpoint->tensors().size(), 3U);
  }
}

TEST_F(OpenSafetensorsTest, OneNameInTwoFiles) {
  write_safetensors(dir_ / "c.safetensors", {y_});
  EXPECT_THAT(rejection(ErrorKind::kFailure), HasSubstr("'y' is both in b.safetensors and in c.safetensors"));
}

TEST_F(OpenSafetensorsTest, AnIndexThatDoesNotFit) {
  write_index(R"("x.w": "a.safetensors")");
  EXPECT_THAT(rejection(ErrorKind::kCorrupt), HasSubstr("does not list 'x.none'"));
  write_index(R"("x.w": "../a.safetensors")");
  EXPECT_THAT(rejection(ErrorKind::kCorrupt), HasSubstr("which is not in it"));
  write_index(R"("x.w": "z.safetensors")");
  EXPECT_THAT(rejection(ErrorKind::kMissing), HasSubstr("z.safetensors"));
  write_file(dir_ / "other.safetensors.index.json", "{}");
  EXPECT_THAT(rejection(ErrorKind::kUsage), HasSubstr("several models"));
}

class OpenDcpSafetensorsTest : public ::testing::Test {
 protected:
  // The rows [first, first + count) of the truth, as one rank's file.
  void write_shard(int rank, std::int64_t first, std::int64_t count, const std::string& sharding = "") {
    const Box box{{first, 0}, {count, 3}};
    const Truth part{{"w"}, truth_.dtype, box.sizes, truth_.part(box)};
    const std::string info = R"({"w": {"saved_offsets": [)" + std::to_string(first) + ", 0]}}";
    write_safetensors(dir_ / ("shard-0000" + std::to_string(rank) + "-model-00001-of-00001.safetensors"),
                      {part},
                      {{"DCP_VERSION", "1.0"}, {"DCP_SHARDING_INFO", sharding.empty() ? info : sharding}});
  }
  std::string rejection() {
    return error_of(ErrorKind::kCorrupt, [&] {
      const auto checkpoint = open_dcp_safetensors(dir_.path());
      for (std::size_t i = 0; i < checkpoint->tensors().size(); ++i) checkpoint->check_coverage(i);
    });
  }

  TempDir dir_;
  const Truth truth_ = Truth::make({"w"}, DType::kFloat32, {5, 3}, 9);
};

TEST_F(OpenDcpSafetensorsTest, PutsShardsTogether) {
  write_shard(2, 3, 2);
  write_shard(1, 0, 3);
  const auto checkpoint = open_dcp_safetensors(dir_.path());
  EXPECT_EQ(checkpoint->kind(), Kind::kDcpSafetensors);
  EXPECT_EQ(checkpoint->tensors().at(0).shape, (Dims{5, 3}));
  EXPECT_EQ(read_tensor(*checkpoint, "w"), truth_.data);
  EXPECT_EQ(checkpoint->metadata().count("DCP_SHARDING_INFO"), 0U);
}

TEST_F(OpenDcpSafetensorsTest, TheSamePartTwiceIsACopy) {
  write_shard(1, 0, 5);
  write_shard(2, 0, 5);
  const auto checkpoint = open_dcp_safetensors(dir_.path());
  EXPECT_EQ(checkpoint->tensors().at(0).pieces, 1U);
  EXPECT_EQ(checkpoint->tensors().at(0).copies, 1U);
  EXPECT_EQ(checkpoint->locate(0).copies.at(0).file, "shard-00002-model-00001-of-00001.safetensors");
}

TEST_F(OpenDcpSafetensorsTest, RejectsHolesAndBrokenOffsets) {
  write_shard(1, 0, 2);
  write_shard(2, 3, 2);
  EXPECT_THAT(rejection(), HasSubstr("cover 12 of 15"));
  write_shard(2, 1, 4);
  EXPECT_THAT(rejection(), HasSubstr("overlap"));
  for (const char* sharding :
       {"[]", "{", R"({"v": {}})", R"({"w": {"saved_offsets": [0]}})", R"({"w": {"saved_offsets": [0, -1]}})",
        R"({"w": {"saved_offsets": 3}})", R"({"w": {"saved_offsets": [9223372036854775807, 0]}})"}) {
    write_shard(2, 3, 2, sharding);
    EXPECT_THAT(rejection(), HasSubstr("shard-00002")) << sharding;
  }
}

}  // namespace
}  // namespace accel::ckpt
