#include "base/text.hpp"

#include <gtest/gtest.h>

#include <cstdio>

namespace accel {
namespace {

TEST(TextTest, BytesInDecimalUnits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(1'500), "1.50 kB");
  EXPECT_EQ(format_bytes(12'345'678), "12.3 MB");
  EXPECT_EQ(format_bytes(999'999), "1.00 MB");
  EXPECT_EQ(format_bytes(4'280'000'000), "4.28 GB");
}

TEST(TextTest, Durations) {
  EXPECT_EQ(format_duration(0.0451), "45 ms");
  EXPECT_EQ(format_duration(12.34), "12.3 s");
  EXPECT_EQ(format_duration(65), "1m 05s");
  EXPECT_EQ(format_duration(3'720), "1h 02m");
}

TEST(TextTest, EditDistance) {
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
}

TEST(TextTest, NearestFindsTyposAndNothingFarAway) {
  const std::vector<std::string> keys = {"max_steps", "seed", "output_dir"};
  EXPECT_EQ(nearest("max_step", keys), "max_steps");
  EXPECT_EQ(nearest("sead", keys), "seed");
  EXPECT_EQ(nearest("zebra_crossing", keys), std::nullopt);
}

TEST(TextTest, SplitAndTrim) {
  EXPECT_TRUE(split("", ',').empty());
  EXPECT_EQ(split("a,,b", ','), (std::vector<std::string>{"a", "", "b"}));
  EXPECT_EQ(trim("  a b\n"), "a b");
  EXPECT_EQ(trim(" \t"), "");
}

TEST(TextTest, Ints) {
  EXPECT_EQ(parse_int("12"), 12);
  EXPECT_EQ(parse_int("-1"), -1);
  for (const char* text : {"", " 1", "1 ", "1x", "x", "1.5", "99999999999"})
    EXPECT_EQ(parse_int(text), std::nullopt) << text;
}

TEST(TextTest, Sizes) {
  EXPECT_EQ(parse_size("0"), 0u);
  EXPECT_EQ(parse_size("100"), 100u);
  EXPECT_EQ(parse_size("17B"), 17u);
  EXPECT_EQ(parse_size("5GB"), 5'000'000'000u);
  EXPECT_EQ(parse_size(" 1.5 gb"), 1'500'000'000u);
  EXPECT_EQ(parse_size("0.64KB"), 640u);
  EXPECT_EQ(parse_size("64MiB"), std::uint64_t{64} << 20);
  EXPECT_EQ(parse_size("2T"), 2'000'000'000'000u);
}

TEST(TextTest, NoSizes) {
  for (const char* text :
       {"", "GB", "-1", "-0", "5XB", "5GBB", "1e3", "nan", "inf", "i", "5i", "5iB", "9999999PB", "5 G B"}) {
    EXPECT_EQ(parse_size(text), std::nullopt) << text;
  }
}

TEST(TextTest, AJsonParsersTagIsLeftOut) {
  EXPECT_EQ(without_json_tag("[json.exception.parse_error.101] parse error at line 1"),
            "parse error at line 1");
  EXPECT_EQ(without_json_tag("other text] here"), "other text] here");
}

TEST(TextTest, LettersAndDigitsAreThoseOfAscii) {
  EXPECT_EQ(lower_case("AbZ[@-\xc3\x84"), "abz[@-\xc3\x84");
  EXPECT_TRUE(is_digits("007"));
  for (const char* text : {"", "-1", "1.0", " 1", "1a"}) EXPECT_FALSE(is_digits(text)) << text;
}

TEST(TextTest, AShellReadsAWordAsItIs) {
  EXPECT_EQ(shell_word("/a-b/c_1.pt"), "/a-b/c_1.pt");
  for (const std::string text : {"", "a b", "it's", "$HOME", "a\"b\\", "*", "~x", "a;b", "\xc3\xa4"}) {
    const std::string command = "printf %s " + shell_word(text);
    std::string shown(100, '\0');
    FILE* shell = ::popen(command.c_str(), "r");
    ASSERT_NE(shell, nullptr);
    shown.resize(std::fread(shown.data(), 1, shown.size(), shell));
    EXPECT_EQ(::pclose(shell), 0);
    EXPECT_EQ(shown, text);
  }
}

}  // namespace
}  // namespace accel
