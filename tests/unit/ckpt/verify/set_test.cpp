#include <gmock/gmock.h>

#include <filesystem>

#include "ckpt/verify/job.hpp"
#include "opened.hpp"
#include "torch_files.hpp"

namespace accel::ckpt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TempDir;
using testing::Truth;
using testing::write_file;
using testing::write_safetensors;

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";

// `a` (24 bytes) and `b` (8 bytes), a file each, with an index.
class VerifySetTest : public ::testing::Test {
 protected:
  VerifySetTest() {
    write_safetensors(dir_ / kFirst, {a_});
    write_safetensors(dir_ / kSecond, {b_});
    write_index(kFirst, kSecond, 32);
  }
  void write_index(const std::string& file_of_a, const std::string& file_of_b, int bytes) {
    write_file(dir_ / kIndex, R"({"metadata": {"total_size": )" + std::to_string(bytes) +
                                  R"(}, "weight_map": {"a": ")" + file_of_a + R"(", "b": ")" + file_of_b +
                                  R"("}})");
  }
  std::vector<std::string> findings() {
    std::vector<std::string> texts;
    for (const Finding& finding : verify_set(dir_.path(), Kind::kSafetensorsSharded).result.findings) {
      texts.push_back(to_string(finding));
    }
    return texts;
  }

  TempDir dir_;
  const Truth a_ = Truth::make({"a"}, DType::kFloat32, {2, 3}, 1);
  const Truth b_ = Truth::make({"b"}, DType::kInt64, {1}, 2);
};

TEST_F(VerifySetTest, ASoundSetHasNoFindings) {
  const Verified result = verify_set(dir_.path(), Kind::kSafetensorsSharded).result;
  EXPECT_THAT(result.findings, IsEmpty());
  EXPECT_EQ(result.tensors, 2U);
  EXPECT_EQ(result.files, 2U);
}

TEST_F(VerifySetTest, TheIndexMustAgreeWithTheFiles) {
  write_index(kFirst, kFirst, 32);
  EXPECT_THAT(findings(),
              ElementsAre(HasSubstr("hole: model-00001-of-00002.safetensors, 'b': is not in the file"),
                          HasSubstr("stale: model-00002-of-00002.safetensors: is not named"),
                          HasSubstr("says that all tensors have 32 bytes, they have 24")));
  write_index(kFirst, kSecond, 31);
  EXPECT_THAT(findings(), ElementsAre(HasSubstr("says that all tensors have 31 bytes, they have 32")));
  write_index(kFirst, kSecond, 32);
  write_safetensors(dir_ / kSecond, {b_, a_});
  EXPECT_THAT(findings(), ElementsAre(HasSubstr("overlap: model-00002-of-00002.safetensors, 'a': "),
                                      HasSubstr("says that model-00001-of-00002.safetensors has it"),
                                      HasSubstr("says that all tensors have 32 bytes, they have 56")));
}

TEST_F(VerifySetTest, AMissingFileIsNamed) {
  std::filesystem::remove(dir_ / kSecond);
  EXPECT_THAT(findings(),
              ElementsAre(HasSubstr("missing-file: model-00002-of-00002.safetensors: is not there, "
                                    "but model.safetensors.index.json names it")));
  std::filesystem::remove(dir_ / kIndex);
  EXPECT_THAT(findings(),
              ElementsAre(HasSubstr("missing-file: model-00002-of-00002.safetensors: is not there, "
                                    "but model-00001-of-00002.safetensors is")));
}

TEST_F(VerifySetTest, ABrokenFileIsLeftToItsOwnFinding) {
  std::filesystem::resize_file(dir_ / kSecond, std::filesystem::file_size(dir_ / kSecond) - 1);
  EXPECT_THAT(findings(), IsEmpty());
}

TEST_F(VerifySetTest, ABrokenIndexIsAFinding) {
  write_file(dir_ / kIndex, "{");
  EXPECT_THAT(findings(), ElementsAre(HasSubstr("broken: model.safetensors.index.json: ")));
  write_file(dir_ / "pytorch_model.bin.index.json", "{");
  const Verified torch = verify_set(dir_.path(), Kind::kTorchSharded).result;
  ASSERT_EQ(torch.findings.size(), 1U);
  EXPECT_THAT(to_string(torch.findings[0]), HasSubstr("broken: pytorch_model.bin.index.json: "));
}

TEST_F(VerifySetTest, ASetOfTheOtherFormIsCheckedToo) {
  write_file(dir_ / "pytorch_model.bin.index.json",
             R"({"weight_map": {"a": "pytorch_model-00001-of-00001.bin"}})");
  EXPECT_THAT(findings(),
              ElementsAre(HasSubstr("missing-file: pytorch_model-00001-of-00001.bin: is not there")));
  // Without an index, the names say it.
  std::filesystem::remove(dir_ / "pytorch_model.bin.index.json");
  testing::write_torch_file(dir_ / "pytorch_model-00001-of-00002.bin", pickle::Dict{}, {});
  EXPECT_THAT(findings(),
              ElementsAre(HasSubstr("missing-file: pytorch_model-00002-of-00002.bin: is not there")));
}

}  // namespace
}  // namespace accel::ckpt
