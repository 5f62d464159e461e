#include <gmock/gmock.h>

#include "ckpt/read/openers.hpp"
#include "ckpt/read/rank_files.hpp"
#include "opened.hpp"
#include "torch_files.hpp"

namespace accel::ckpt {
namespace {

using pickle::Dict;
using testing::error_of;
using ::testing::HasSubstr;
using testing::read_tensor;
using testing::TempDir;
using testing::Truth;
using testing::view_of;
using testing::write_file;
using testing::write_torch_file;

// A tensor of shape [3, 4] over three ranks: elements 0 to 5, 5 to 5, 5 to 12.
class OpenLocalTest : public ::testing::Test {
 protected:
  OpenLocalTest() {
    write_rank(0, 0, 5);
    write_rank(1, 5, 5);
    write_rank(2, 5, 12);
  }
  void write_rank(int rank, int begin, int end) {
    const std::string stem = "pytorch_model_fsdp_rank" + std::to_string(rank);
    std::filesystem::remove(dir_ / (stem + ".bin"));
    const std::string data =
        truth_.data.substr(static_cast<std::size_t>(begin) * 4, static_cast<std::size_t>(end - begin) * 4);
    write_torch_file(dir_ / (stem + ".bin"), Dict{{{"w", view_of("0", end - begin, 0, {end - begin}, {1})}}},
                     {data});
    describe(rank, R"("dtype": "float32", "shape": [3, 4], "begin": )" + std::to_string(begin) +
                       R"(, "end": )" + std::to_string(end));
  }
  void describe(int rank, const std::string& entry,
                const std::string& head = R"("version": 1, "world_size": 3)") {
    write_file(
        dir_ / ("pytorch_model_fsdp_rank" + std::to_string(rank) + ".json"),
        "{" + head + R"(, "rank": )" + std::to_string(rank) + R"(, "tensors": {"w": {)" + entry + "}}}");
  }
  std::unique_ptr<Checkpoint> open(int rank = 0) {
    return open_local(dir_ / ("pytorch_model_fsdp_rank" + std::to_string(rank) + ".bin"));
  }
  std::string rejection(ErrorKind kind = ErrorKind::kCorrupt) {
    return error_of(kind, [&] { open()->check_coverage(0); });
  }

  TempDir dir_;
  const Truth truth_ = Truth::make({"w"}, DType::kFloat32, {3, 4}, 4);
};

TEST_F(OpenLocalTest, PutsFlatSharesTogether) {
  for (const int rank : {0, 1, 2}) {
    const auto checkpoint = open(rank);
    EXPECT_EQ(checkpoint->kind(), Kind::kLocal);
    EXPECT_EQ(checkpoint->tensors().at(0).shape, (Dims{3, 4}));
    EXPECT_EQ(read_tensor(*checkpoint, "w"), truth_.data);
  }
}

TEST_F(OpenLocalTest, TheSameRangeTwiceIsACopy) {
  write_rank(1, 0, 5);
  const auto checkpoint = open();
  EXPECT_EQ(read_tensor(*checkpoint, "w"), truth_.data);
  EXPECT_EQ(checkpoint->tensors().at(0).copies, 2U);  // A whole row, and a part of the next.
}

TEST_F(OpenLocalTest, AMissingRankIsNamed) {
  std::filesystem::remove(dir_ / "pytorch_model_fsdp_rank1.bin");
  EXPECT_THAT(rejection(ErrorKind::kMissing), HasSubstr("rank 1 of 3 is missing"));
  write_rank(1, 5, 5);
  std::filesystem::remove(dir_ / "pytorch_model_fsdp_rank2.json");
  EXPECT_THAT(rejection(ErrorKind::kMissing), HasSubstr("pytorch_model_fsdp_rank2.json"));
}

TEST_F(OpenLocalTest, RejectsContradictions) {
  write_rank(1, 4, 6);
  EXPECT_THAT(rejection(), HasSubstr("elements 0 to 5 and 4 to 6 of two ranks overlap"));
  write_rank(1, 5, 5);
  write_rank(2, 6, 12);
  EXPECT_THAT(rejection(), HasSubstr("cover 11 of 12"));
  write_rank(2, 5, 12);
  const std::string right = R"("dtype": "float32", "shape": [3, 4], "begin": 5, "end": 12)";
  describe(2, right, R"("version": 9, "world_size": 3)");
  EXPECT_THAT(rejection(), HasSubstr("its version is 9"));
  describe(2, right, R"("version": 1, "world_size": 4)");
  EXPECT_THAT(rejection(), HasSubstr("says rank 2 of 4, but rank 2 of 3"));
  describe(2, right, R"("version": 1, "world_size": 2)");
  EXPECT_THAT(rejection(), HasSubstr("rank 2 of 2"));
  for (const auto& [entry, words] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"("dtype": "float32", "shape": [4, 3], "begin": 5, "end": 12)", "on an earlier rank"},
           {R"("dtype": "int32", "shape": [3, 4], "begin": 5, "end": 12)", "7 elements of int32"},
           {R"("dtype": "x", "shape": [3, 4], "begin": 5, "end": 12)", "dtype"},
           {R"("dtype": "float32", "shape": [3, 4], "begin": 5, "end": 13)", "elements 5 to 13"},
           {R"("dtype": "float32", "shape": [3, 4], "begin": 6, "end": 12)", "says 6 elements"},
           {R"("dtype": "float32", "shape": [3, 4], "begin": -1, "end": 12)", "'begin' is -1"},
           {R"("dtype": "float32", "shape": 12, "begin": 5, "end": 12)", "shape is 12"},
           {R"("dtype": "float32", "shape": [4611686018427387904, 4], "begin": 5, "end": 12)", "overflows"},
           {R"("dtype": "float32", "begin": 5, "end": 12)", "'shape' is missing"}}) {
    describe(2, entry);
    EXPECT_THAT(rejection(), HasSubstr(words)) << entry;
  }
  write_file(dir_ / "pytorch_model_fsdp_rank2.json", "{]");
  EXPECT_THAT(rejection(), HasSubstr("not a JSON object"));
}

TEST_F(OpenLocalTest, RejectsWhatIsNoTensorOfTheList) {
  const std::string data = truth_.data.substr(20);
  const pickle::Value share = view_of("0", 7, 0, {7}, {1});
  const auto write = [&](const Dict& root) {
    std::filesystem::remove(dir_ / "pytorch_model_fsdp_rank2.bin");
    write_torch_file(dir_ / "pytorch_model_fsdp_rank2.bin", root, {data});
  };
  write(Dict{{{"w", share}, {"v", share}}});
  EXPECT_THAT(rejection(), HasSubstr("tensor 'v': the .json beside it does not list it"));
  write(Dict{{{"w", share}, {"n", 3}}});
  EXPECT_THAT(rejection(), HasSubstr("'n' is not a tensor"));
  write(Dict{});
  EXPECT_THAT(rejection(), HasSubstr("it has 0 tensors, the .json beside it lists 1"));
}

TEST(RankFilesTest, BelongTogetherByTheirStem) {
  const TempDir dir;
  for (const char* name :
       {"pytorch_model_fsdp_rank0.bin", "pytorch_model_fsdp_rank10.bin", "pytorch_model_fsdp_1_rank3.bin",
        "optimizer_rank0.bin", "pytorch_model_fsdp_rank0.json"}) {
    write_file(dir / name, "");
  }
  const RankFiles set = rank_files_of(dir / "pytorch_model_fsdp_rank10.bin");
  EXPECT_EQ(set.files, (std::map<int, std::string>{{0, "pytorch_model_fsdp_rank0.bin"},
                                                   {10, "pytorch_model_fsdp_rank10.bin"}}));
  require_rank(set, 10, 11);
  EXPECT_THAT(error_of(ErrorKind::kMissing, [&] { require_rank(set, 4, 11); }), HasSubstr("rank 4 of 11"));
  EXPECT_THAT(error_of(ErrorKind::kMissing, [&] { require_rank(set, std::int64_t{1} << 40, 11); }),
              HasSubstr("rank 1099511627776"));
  write_file(dir / "pytorch_model_fsdp_rank010.bin", "");
  EXPECT_THAT(
      error_of(ErrorKind::kCorrupt, [&] { (void)rank_files_of(dir / "pytorch_model_fsdp_rank10.bin"); }),
      HasSubstr("has both"));
}

}  // namespace
}  // namespace accel::ckpt
