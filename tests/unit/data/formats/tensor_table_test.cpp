#include "data/formats/tensor_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <span>

#include "base/error.hpp"
#include "temp_dir.hpp"

namespace accel {
namespace {

using ::testing::HasSubstr;
using testing::TempDir;
using testing::write_file;

// A safetensors file of a header and a buffer.
std::string file_of(const std::string& json, const std::string& buffer) {
  std::uint64_t bytes = json.size();
  std::string text(sizeof bytes, '\0');
  std::memcpy(text.data(), &bytes, sizeof bytes);
  return text + json + buffer;
}

TensorTable open(const std::filesystem::path& path) {
  return TensorTable::open({.format = "tensors", .path = path.string(), .sequence_length = 0, .dtype = ""});
}

std::string text_of(const TensorTable& table, std::size_t field, std::int64_t row) {
  std::string text(table.fields()[field].bytes, '\0');
  table.read_bytes(field, row, 0, std::as_writable_bytes(std::span(text)));
  return text;
}

std::string refusal(const std::filesystem::path& path) {
  try {
    (void)open(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.message();
  }
  return "nothing";
}

constexpr const char* kTwo = R"({"y":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                             R"("x":{"dtype":"U8","shape":[2,3],"data_offsets":[2,8]}})";

TEST(TensorTableTest, RowsGoOnInTheNextFile) {
  const TempDir dir;
  write_file(dir / "a.safetensors", file_of(kTwo, "01abcdef"));
  write_file(dir / "b.safetensors", file_of(kTwo, "23ghijkl"));
  const TensorTable table = open(dir / "*.safetensors");
  ASSERT_EQ(table.size(), 4);
  ASSERT_EQ(table.fields().size(), 2u);
  EXPECT_EQ(table.fields()[0].name, "x");
  EXPECT_EQ(table.fields()[0].shape, std::vector<std::int64_t>{3});
  EXPECT_TRUE(table.fields()[1].shape.empty());
  std::string x;
  std::string y;
  for (std::int64_t row = 0; row < table.size(); ++row) {
    x += text_of(table, 0, row);
    y += text_of(table, 1, row);
  }
  EXPECT_EQ(x, "abcdefghijkl");
  EXPECT_EQ(y, "0123");
  EXPECT_EQ(table.position(2), "data file '" + (dir / "b.safetensors").string() + "', sample 0");
  EXPECT_THROW((void)text_of(table, 0, 4), Error);
  EXPECT_THROW((void)text_of(table, 0, -1), Error);
}

TEST(TensorTableTest, WhatIsNoTableIsRefused) {
  const TempDir dir;
  const auto said = [&](const std::string& json, const std::string& buffer) {
    write_file(dir / "t.safetensors", file_of(json, buffer));
    return refusal(dir / "t.safetensors");
  };
  EXPECT_THAT(said("{}", ""), HasSubstr("it holds no tensors"));
  EXPECT_THAT(said(R"({"x":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})", "a"),
              HasSubstr("'x' is a scalar"));
  EXPECT_THAT(said(R"({"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", ""),
              HasSubstr("'x' has no elements"));
  EXPECT_THAT(said(R"({"x":{"dtype":"U8","shape":[2,0],"data_offsets":[0,0]}})", ""),
              HasSubstr("'x' has no elements"));
  EXPECT_THAT(said(R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                   R"("y":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
                   "abc"),
              HasSubstr("'x' has 2 samples, but 'y' has 1"));
  EXPECT_THAT(said(kTwo, "short"), HasSubstr("it is not a safetensors file"));
  EXPECT_THAT(refusal(dir / "*.nothing"), HasSubstr("no file matches"));
}

}  // namespace
}  // namespace accel
