#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <vector>

#include "base/error.hpp"
#include "data/files/token_stream.hpp"
#include "data/formats/jsonl_line.hpp"
#include "temp_dir.hpp"

namespace accel {
namespace {

using ::testing::HasSubstr;
using testing::TempDir;
using testing::write_file;

std::vector<std::int64_t> tokens_of(std::string_view line) {
  std::vector<std::int64_t> tokens = {99};  // What is there stays.
  append_line_tokens(line, tokens);
  EXPECT_EQ(tokens.front(), 99);
  tokens.erase(tokens.begin());
  return tokens;
}

TEST(JsonlLineTest, IsAListOrAnObjectWithOne) {
  using Tokens = std::vector<std::int64_t>;
  EXPECT_EQ(tokens_of("[1, 2, 4294967295]"), (Tokens{1, 2, 4294967295}));
  EXPECT_EQ(tokens_of(" [ ] \r"), Tokens());
  EXPECT_EQ(tokens_of(" \t\r"), Tokens());
  EXPECT_EQ(tokens_of(R"({"input_ids": [7,8]})"), (Tokens{7, 8}));
  EXPECT_EQ(
      tokens_of(
          R"({"text": "[5]", "attention_mask": [1, 1], "n": {"input_ids": [3], "labels": 0}, "input_ids")"
          R"(: [0], "tags": [["a"], {"b": null}, 1.5, -1, false]})"),
      (Tokens{0}));
}

TEST(JsonlLineTest, NamesWhatIsWrong) {
  const std::pair<std::string, const char*> rows[] = {
      {"[1, -1]", "-1 at position 1 of its list is not a token, which is from 0 to 4294967295"},
      {"[4294967296]", "4294967296 at position 0"},
      {"[1e3]", "1e3 at position 0"},
      {"[99999999999999999999999]", "99999999999999999999999 at position 0"},
      {"[1, null]", "null at position 1"},
      {"[true]", "true at position 0"},
      {R"(["1"])", "a string at position 0"},
      {"[[1]]", "a list at position 0"},
      {R"([{"input_ids": [1]}])", "an object at position 0"},
      {R"({"input_ids": [[1]]})", "a list at position 0"},
      {R"({"input_ids": 3})", "'input_ids' is 3, not a list"},
      {R"({"input_ids": {"input_ids": [3]}})", "'input_ids' is an object, not a list"},
      {R"({"input_ids": [1], "input_ids": [2]})", "it has 'input_ids' twice"},
      {R"({"text": "once"})", "it is an object without 'input_ids'"},
      {"{}", "it is an object without 'input_ids'"},
      {"7", "it is 7, not a list or an object"},
      {R"("once")", "it is a string, not a list or an object"},
      {R"({"input_ids": [1, 2], "labels": [-100, 2]})", "it has 'labels'"},
      {R"({"attention_mask": [0, 1], "input_ids": [1, 2]})", "'attention_mask' leaves tokens out"},
      {R"({"input_ids": [1, 2], "assistant_masks": [true, false]})", "'assistant_masks' leaves tokens out"},
      {"[1, 2", "it is not JSON at its byte 6"},
      {"[1, 2]]", "it is not JSON at its byte 7"},
      {"[1] [2]", "it is not JSON at its byte 5"},
      {"once upon a time", "it is not JSON at its byte 1"},
      {std::string("[1, 2]\0[3]", 10), "it has a zero byte"},
  };
  for (const auto& [line, part] : rows) {
    try {
      (void)tokens_of(line);
      ADD_FAILURE() << line;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_THAT(error.message(), HasSubstr(part)) << line;
    }
  }
}

// A range of tokens of a long line is read without the rest of the line.
TEST(JsonlLineTest, PlacesWithinALongLineAreNoted) {
  const std::vector<std::int64_t> numbers(60'000, 1234);
  const std::string line = fmt::format(R"({{"input_ids": [{}], "n": [5]}})", fmt::join(numbers, ", "));
  std::vector<std::int64_t> tokens;
  std::vector<LinePlace> places;
  append_line_tokens(line, tokens, &places);
  EXPECT_EQ(tokens, numbers);
  ASSERT_EQ(places.size(), line.size() / kPlaceBytes);
  for (const LinePlace& place : places) {
    std::vector<std::int64_t> before, behind;
    append_line_tokens(line.substr(0, place.offset), before, nullptr, /*is_cut=*/true);
    EXPECT_EQ(before.size(), place.tokens);
    append_list_tokens(std::string_view(line).substr(place.offset), behind);
    EXPECT_EQ(behind.size(), numbers.size() - place.tokens);
    EXPECT_EQ(behind.front(), 1234);
  }
  EXPECT_THROW(append_list_tokens(", 5, null]", tokens), Error);
}

TokenStream open(const std::filesystem::path& path) {
  return TokenStream::open({"jsonl", path.string(), 0, ""});
}

std::string error_of(const std::filesystem::path& path) {
  try {
    (void)open(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.message();
  }
  return "";
}

// Lines are far shorter and far longer than the blocks that are read, and end in each way.
TEST(JsonlTokensTest, AnyRangeOfTokensIsThatOfTheLines) {
  const TempDir dir;
  std::mt19937 random(1);  // NOLINT(bugprone-random-generator-seed): The same file each time.
  std::vector<std::int64_t> expected;
  std::ofstream file(dir / "a.jsonl");
  for (const std::size_t length : {0, 1, 3, 70'000, 0, 20, 1, 250'000, 5, 2'000, 30'000, 0, 1}) {
    std::vector<std::uint32_t> line(length);
    for (std::uint32_t& token : line) token = static_cast<std::uint32_t>(random() >> random() % 32);
    expected.insert(expected.end(), line.begin(), line.end());
    if (length % 3 == 0) {
      file << fmt::format("[{}]\n", fmt::join(line, ","));
    } else {
      file << fmt::format("{{\"input_ids\": [{}]}}\r\n\n", fmt::join(line, ", "));
    }
  }
  // A list that begins and ends far from the ends of its line.
  const std::string text(100'000, ']');
  const std::vector<std::int64_t> fives(40'000, 55);
  file << fmt::format(R"({{"a": "{}", "input_ids": [{}], "b": "{}"}})", text, fmt::join(fives, " ,"), text);
  expected.insert(expected.end(), fives.begin(), fives.end());
  file << "\n[8, 9]";  // The last line has no end.
  file.close();
  expected.insert(expected.end(), {8, 9});
  const TokenStream stream = open(dir / "a.jsonl");
  ASSERT_EQ(stream.size(), static_cast<std::int64_t>(expected.size()));
  for (int i = 0; i < 50; ++i) {
    const std::size_t begin = random() % expected.size();
    std::vector<std::int64_t> tokens(std::min<std::size_t>(expected.size() - begin, random() % 3000));
    stream.read(static_cast<std::int64_t>(begin), tokens);
    EXPECT_TRUE(
        std::equal(tokens.begin(), tokens.end(), expected.begin() + static_cast<std::ptrdiff_t>(begin)))
        << begin;
  }
  std::vector<std::int64_t> all(expected.size());
  stream.read(0, all);
  EXPECT_EQ(all, expected);
}

TEST(JsonlTokensTest, FilesFollowOneAnother) {
  const TempDir dir;
  write_file(dir / "a.jsonl", "[1, 2]\n[3]\n");
  write_file(dir / "b.jsonl", "[4]\n\n[5, 6]");
  const TokenStream stream = open(dir / "*.jsonl");
  std::vector<std::int64_t> tokens(4);
  stream.read(1, tokens);
  EXPECT_EQ(tokens, (std::vector<std::int64_t>{2, 3, 4, 5}));
  EXPECT_EQ(stream.file_ends(), (std::vector<std::int64_t>{3, 6}));
}

TEST(JsonlTokensTest, NamesTheFileAndTheLine) {
  const TempDir dir;
  write_file(dir / "a.jsonl", "[1, 2]\n\n{\"text\": \"In the beginning\"}\n");
  EXPECT_THAT(error_of(dir / "a.jsonl"), HasSubstr("a.jsonl': line 3: it is an object without 'input_ids'"));
  write_file(dir / "a.jsonl", "[]\n\n");
  EXPECT_THAT(error_of(dir / "a.jsonl"), HasSubstr("a.jsonl': the file holds no tokens"));
  write_file(dir / "a.jsonl", "");
  EXPECT_THAT(error_of(dir / "a.jsonl"), HasSubstr("the file holds no tokens"));
  write_file(dir / "a.jsonl", "[1]\n[" + std::string((16 << 20) + (64 << 10), ' ') + "1]\n");
  EXPECT_THAT(error_of(dir / "a.jsonl"), HasSubstr("line 2: it has more than 16777216 bytes"));
}

TEST(JsonlTokensTest, AFileThatHasChangedIsNamed) {
  const TempDir dir;
  const std::filesystem::path path = dir / "a.jsonl";
  // A file that is shorter, and files of at least its size with other text and with fewer tokens.
  for (const std::string& content :
       {std::string("[1]\n"), std::string(40, 'x'), "[11, 12]" + std::string(40, '\n')}) {
    write_file(path, "[11, 12, 13, 14]\n[15, 16, 17, 18]\n");
    const TokenStream stream = open(path);
    // The file itself is written, as a DataFile stays open.
    std::ofstream(path, std::ios::trunc) << content;
    std::vector<std::int64_t> tokens(8);
    try {
      stream.read(0, tokens);
      ADD_FAILURE() << content;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_THAT(error.message(), HasSubstr("a.jsonl' has changed while the run reads it")) << content;
    }
  }
}

}  // namespace
}  // namespace accel
