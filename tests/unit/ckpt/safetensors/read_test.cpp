#include <fmt/format.h>
#include <gmock/gmock.h>

#include <chrono>

#include "ckpt/io/endian.hpp"
#include "ckpt/safetensors/header.hpp"
#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::bytes_of;
using testing::error_of;
using testing::expect_ok_or_error;
using ::testing::HasSubstr;
using testing::TempDir;
using testing::write_file;

SafetensorsHeader parse(std::string_view json, std::uint64_t buffer_bytes) {
  return parse_safetensors_header(bytes_of(json), buffer_bytes);
}
std::string rejection(std::string_view json, std::uint64_t buffer_bytes) {
  return error_of(ErrorKind::kCorrupt, [&] { (void)parse(json, buffer_bytes); });
}

constexpr std::string_view kGood =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},)"
    R"("a":{"dtype":"U8","shape":[2,2],"data_offsets":[0,4]}}   )";

TEST(SafetensorsReadTest, ReadsEntriesInTheOrderOfTheBuffer) {
  const SafetensorsHeader header = parse(kGood, 12);
  ASSERT_EQ(header.entries.size(), 2U);
  EXPECT_EQ(header.entries[0].name, "a");
  EXPECT_EQ(header.entries[0].shape, (Dims{2, 2}));
  EXPECT_EQ(header.entries[1].dtype, DType::kFloat32);
  EXPECT_EQ(header.metadata, (StringMap{{"format", "pt"}}));
  EXPECT_EQ(header.buffer_offset, 8 + kGood.size());
}

TEST(SafetensorsReadTest, AFileWithoutTensorsIsFine) { EXPECT_TRUE(parse("{}", 0).entries.empty()); }

TEST(SafetensorsReadTest, RejectsWhatIsNotAnObject) {
  EXPECT_THAT(rejection("", 0), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(rejection(" {}", 0), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(rejection("[]", 0), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(rejection("{", 0), HasSubstr("not JSON"));
  EXPECT_THAT(rejection("{} {}", 0), HasSubstr("not JSON"));
  EXPECT_THAT(rejection("{\"\xff\": 1}", 0), HasSubstr("not JSON"));
}

TEST(SafetensorsReadTest, RejectsANameThatComesTwice) {
  EXPECT_THAT(
      rejection(
          R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
          0),
      HasSubstr("'a' comes twice"));
}

TEST(SafetensorsReadTest, TimeIsLinearInTheNumberOfTensors) {
  const auto seconds_for = [](std::size_t count) {
    std::string text = "{";
    for (std::size_t i = 0; i < count; ++i) {
      text += fmt::format(R"({}"layers.{}.weight":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}})",
                          i == 0 ? "" : ",", i, i, i + 1);
    }
    text += "}";
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(parse(text, count).entries.size(), count);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const double few = seconds_for(2'000);
  EXPECT_LT(seconds_for(40'000), 20 * 4 * few + 0.5);
}

TEST(SafetensorsReadTest, RejectsBrokenEntries) {
  EXPECT_THAT(rejection(R"({"a":1})", 0), HasSubstr("tensor 'a': its entry is not an object"));
  EXPECT_THAT(rejection(R"({"a":{"shape":[],"data_offsets":[0,1]}})", 1), HasSubstr("'dtype' is missing"));
  EXPECT_THAT(rejection(R"({"a":{"dtype":1,"shape":[],"data_offsets":[0,1]}})", 1),
              HasSubstr("not a string"));
  EXPECT_THAT(rejection(R"({"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", 1),
              HasSubstr("not an array"));
  EXPECT_THAT(rejection(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1),
              HasSubstr("a dimension"));
  EXPECT_THAT(rejection(R"({"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", 1),
              HasSubstr("a dimension"));
  EXPECT_THAT(rejection(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1),
              HasSubstr("not two numbers"));
  EXPECT_THAT(rejection(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,"1"]}})", 1),
              HasSubstr("an offset"));
}

TEST(SafetensorsReadTest, ATensorOfAnUnknownTypeDoesNotHideTheOthers) {
  const SafetensorsHeader header = parse(
      R"({"a":{"dtype":"F33","shape":[3],"data_offsets":[0,5]},"b":{"dtype":"U8","shape":[1],"data_offsets":[5,6]}})",
      6);
  ASSERT_EQ(header.entries.size(), 2U);
  EXPECT_EQ(header.entries[0].dtype, DType::kUnknown);
  EXPECT_THAT(header.entries[0].obstacle, HasSubstr("unknown dtype 'F33'"));
  EXPECT_EQ(header.entries[0].shape, (Dims{3}));
  EXPECT_EQ(header.entries[1].obstacle, "");
  EXPECT_THAT(rejection(R"({"a":{"dtype":"F33","shape":[3],"data_offsets":[5,0]}})", 5),
              HasSubstr("bytes 5 to 0"));
}

TEST(SafetensorsReadTest, ElementsThatShareBytesHaveTheShapeOfTorch) {
  const auto entry = [](std::string_view dtype, std::string_view shape, int bytes) {
    return parse(fmt::format(R"({{"a":{{"dtype":"{}","shape":{},"data_offsets":[0,{}]}}}})", dtype, shape,
                             bytes),
                 static_cast<std::uint64_t>(bytes))
        .entries.at(0);
  };
  EXPECT_EQ(entry("F4", "[2, 6]", 6).dtype, DType::kFloat4E2M1FNx2);
  EXPECT_EQ(entry("F4", "[2, 6]", 6).shape, (Dims{2, 3}));
  EXPECT_EQ(entry("F6_E2M3", "[2, 8]", 12).shape, (Dims{2, 2}));
  EXPECT_EQ(entry("F4", "[3, 0]", 0).shape, (Dims{3, 0}));
  EXPECT_EQ(entry("F4", "[2, 3]", 3).shape, (Dims{3}));
  EXPECT_THAT(entry("F4", "[2, 3]", 3).obstacle, HasSubstr("shape [2, 3], whose rows share a byte"));
  EXPECT_THAT(rejection(R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", 2),
              HasSubstr("does not fill its last byte"));
  EXPECT_THAT(rejection(R"({"a":{"dtype":"F4","shape":[2, 4],"data_offsets":[0,8]}})", 8),
              HasSubstr("shape [2, 4] F4 needs 4"));
}

TEST(SafetensorsReadTest, RejectsSizesThatDoNotFitTheirShape) {
  EXPECT_THAT(rejection(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4),
              HasSubstr("shape [2] F32 needs 8"));
  EXPECT_THAT(rejection(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", 1),
              HasSubstr("bytes 1 to 0"));
  EXPECT_THAT(rejection(R"({"a":{"dtype":"U8","shape":[9223372036854775807,4],"data_offsets":[0,1]}})", 1),
              HasSubstr("overflows"));
}

TEST(SafetensorsReadTest, RejectsHolesAndOverlap) {
  const auto two = [](int begin, int end) {
    return fmt::format(R"({{"a":{{"dtype":"U8","shape":[2],"data_offsets":[0,2]}},)"
                       R"("b":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}}}})",
                       end - begin, begin, end);
  };
  EXPECT_NO_THROW((void)parse(two(2, 4), 4));
  EXPECT_THAT(rejection(two(3, 5), 5), HasSubstr("tensor 'b' begins at byte 3, the one before it ends at 2"));
  EXPECT_THAT(rejection(two(1, 3), 3), HasSubstr("tensor 'b' begins at byte 1"));
  EXPECT_THAT(rejection(two(2, 4), 5),
              HasSubstr("take 4 bytes, the file has 5; the last 1 belong to no tensor"));
  EXPECT_THAT(rejection(two(2, 4), 3), HasSubstr("take 4 bytes, the file has 3"));
}

TEST(SafetensorsReadTest, RejectsMetadataThatIsNotStrings) {
  EXPECT_THAT(rejection(R"({"__metadata__":{"a":1}})", 0), HasSubstr("'a', which is not a string"));
  EXPECT_THAT(rejection(R"({"__metadata__":[]})", 0), HasSubstr("not an object"));
}

TEST(SafetensorsReadTest, DeepJsonIsNoDanger) {
  const std::string deep = R"({"a":)" + std::string(200'000, '[') + std::string(200'000, ']') + "}";
  EXPECT_THAT(rejection(deep, 0), HasSubstr("nests more than 1000 deep"));
}

class SafetensorsFileTest : public ::testing::Test {
 protected:
  SafetensorsHeader read(std::string_view contents) {
    write_file(dir_ / "f", contents);
    return read_safetensors_header(File::open_read(dir_ / "f"));
  }
  std::string rejection(std::string_view contents) {
    return error_of(ErrorKind::kCorrupt, [&] { (void)read(contents); });
  }
  static std::string good() {
    std::string file;
    put_uint(file, kGood.size(), 8);
    return file + std::string(kGood) + "abcdefghijkl";
  }
  TempDir dir_;
};

TEST_F(SafetensorsFileTest, RejectsLengthsBeyondLimitAndFile) {
  EXPECT_EQ(read(good()).entries.size(), 2U);
  EXPECT_THAT(rejection("\x01"), HasSubstr("too few"));
  std::string huge;
  put_uint(huge, kSafetensorsHeaderLimit + 1, 8);
  EXPECT_THAT(rejection(huge + "{}"), HasSubstr("at most 100000000"));
  std::string beyond;
  put_uint(beyond, 3, 8);
  EXPECT_THAT(rejection(beyond + "{}"), HasSubstr("a header of 3 bytes in a file of 10"));
}

TEST_F(SafetensorsFileTest, EveryTruncationIsAnError) {
  const std::string file = good();
  for (std::size_t size = 0; size < file.size(); ++size)
    EXPECT_THROW((void)read(file.substr(0, size)), Error) << size;
}

TEST_F(SafetensorsFileTest, EveryFlippedBitIsReadOrRejected) {
  const std::string file = good();
  for (std::size_t bit = 0; bit < (8 + kGood.size()) * 8; ++bit) {
    std::string broken = file;
    broken[bit / 8] = static_cast<char>(static_cast<unsigned char>(broken[bit / 8]) ^ (1U << (bit % 8)));
    expect_ok_or_error([&] { (void)read(broken); });
  }
}

}  // namespace
}  // namespace accel::ckpt
