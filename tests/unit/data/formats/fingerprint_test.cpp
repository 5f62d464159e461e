#include "data/formats/fingerprint.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "temp_dir.hpp"

namespace accel {
namespace {

using testing::TempDir;
using testing::write_file;

std::string text_of(std::size_t size) {
  std::string text;
  for (std::size_t i = 0; i < size; ++i) text += static_cast<char>(i * 7 % 251);
  return text;
}

TokenStream stream_of(const TempDir& dir) {
  return TokenStream::open({"text", (dir / "*.txt").string(), 0, ""});
}

// A table of one tensor of uint8, [rows, row_bytes].
void write_table(const std::filesystem::path& path, std::size_t rows, std::size_t row_bytes,
                 std::size_t changed = std::string::npos) {
  std::string buffer;
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t i = 0; i < row_bytes; ++i) buffer += static_cast<char>((row * 31 + i * 7) % 251);
  }
  if (changed < buffer.size()) buffer[changed] = static_cast<char>(buffer[changed] ^ 1);
  const std::string json = R"({"x":{"dtype":"U8","shape":[)" + std::to_string(rows) + "," +
                           std::to_string(row_bytes) + R"(],"data_offsets":[0,)" +
                           std::to_string(buffer.size()) + "]}}";
  std::uint64_t length = json.size();
  std::string text(sizeof length, '\0');
  std::memcpy(text.data(), &length, sizeof length);
  write_file(path, text + json + buffer);
}

TensorTable table_of(const TempDir& dir) {
  return TensorTable::open(
      {.format = "tensors", .path = (dir / "*.safetensors").string(), .sequence_length = 0, .dtype = ""});
}

TEST(FingerprintTest, SeesTheLastTokenOfAnySize) {
  const TempDir dir;
  for (const std::size_t size : {1, 2, 63, 64, 65, 126, 127, 1000, 4096, 100'003}) {
    std::string text = text_of(size);
    write_file(dir / "a.txt", text);
    const std::uint32_t before = fingerprint_of(stream_of(dir));
    EXPECT_EQ(fingerprint_of(stream_of(dir)), before);
    text.back() = static_cast<char>(text.back() ^ 1);
    write_file(dir / "a.txt", text);
    EXPECT_NE(fingerprint_of(stream_of(dir)), before) << size;
    text.front() = static_cast<char>(text.front() ^ 2);
    write_file(dir / "a.txt", text);
    EXPECT_NE(fingerprint_of(stream_of(dir)), before) << size;
  }
}

TEST(FingerprintTest, SeesAllOfASmallStream) {
  const TempDir dir;
  std::string text = text_of(4000);
  write_file(dir / "a.txt", text);
  const std::uint32_t before = fingerprint_of(stream_of(dir));
  for (std::size_t at = 0; at < text.size(); at += 61) {
    std::string changed = text;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    write_file(dir / "a.txt", changed);
    EXPECT_NE(fingerprint_of(stream_of(dir)), before) << at;
  }
}

TEST(FingerprintTest, SeesTheTailOfEachFile) {
  const TempDir dir;
  const std::string text = text_of(100'000);
  for (const char* name : {"a.txt", "b.txt", "c.txt"}) write_file(dir / name, text);
  const std::uint32_t before = fingerprint_of(stream_of(dir));
  for (const char* name : {"a.txt", "b.txt", "c.txt"}) {
    write_file(dir / name, text.substr(0, text.size() - 1) + "!");
    EXPECT_NE(fingerprint_of(stream_of(dir)), before) << name;
    write_file(dir / name, text);
  }
  EXPECT_EQ(fingerprint_of(stream_of(dir)), before);
}

TEST(FingerprintTest, SeesTheTailOfEachTable) {
  const TempDir dir;
  constexpr std::size_t kRows = 300;
  constexpr std::size_t kRowBytes = 10'000;
  for (const char* name : {"a.safetensors", "b.safetensors"}) write_table(dir / name, kRows, kRowBytes);
  const std::uint32_t before = fingerprint_of(table_of(dir));
  for (const char* name : {"a.safetensors", "b.safetensors"}) {
    write_table(dir / name, kRows, kRowBytes, kRows * kRowBytes - 1);
    EXPECT_NE(fingerprint_of(table_of(dir)), before) << name;
    write_table(dir / name, kRows, kRowBytes);
  }
  EXPECT_EQ(fingerprint_of(table_of(dir)), before);
}

}  // namespace
}  // namespace accel
