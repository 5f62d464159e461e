#include "base/name_pattern.hpp"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <string>

#include "base/error.hpp"

namespace accel {
namespace {

using ::testing::HasSubstr;

bool matches(std::string_view pattern, std::string_view text) { return NamePattern(pattern).matches(text); }

TEST(NamePatternTest, TheWholeName) {
  EXPECT_TRUE(matches("model.layers.0", "model.layers.0"));
  EXPECT_TRUE(matches("model.layers.0", "model_layers_0"));
  EXPECT_FALSE(matches(R"(model\.layers\.0)", "model_layers_0"));
  EXPECT_FALSE(matches("layers.0", "model.layers.0"));
  EXPECT_FALSE(matches("layers.0", "layers.0.attn"));
  EXPECT_TRUE(matches("", ""));
  EXPECT_FALSE(matches("", "a"));
}

TEST(NamePatternTest, RepeatsAlternativesAndGroups) {
  EXPECT_TRUE(matches(R"(.*layers\.\d+)", "model.layers.10"));
  EXPECT_FALSE(matches(R"(.*layers\.\d+)", "model.layers.10.attn"));
  EXPECT_TRUE(matches("a|bc|d", "bc"));
  EXPECT_TRUE(matches("a|bc|d", "d"));
  EXPECT_FALSE(matches("a|bc|d", "ad"));
  EXPECT_TRUE(matches(std::string(3000, '|'), ""));
  EXPECT_TRUE(matches("x(?:ab|c)*y", "xabcaby"));
  EXPECT_FALSE(matches("x(ab|c)+y", "xy"));
  EXPECT_TRUE(matches("ab??c", "ac"));
  for (const char* text : {"aa", "aaa", "aaaa"}) EXPECT_TRUE(matches("a{2,4}", text));
  for (const char* text : {"a", "aaaaa"}) EXPECT_FALSE(matches("a{2,4}", text));
  EXPECT_TRUE(matches("a{3}", "aaa"));
  EXPECT_FALSE(matches("a{3}", "aa"));
  EXPECT_TRUE(matches("(ab){2,}", "abababab"));
  EXPECT_FALSE(matches("(ab){2,}", "ab"));
  EXPECT_TRUE(matches("(a*)*b", "aab"));
  EXPECT_TRUE(matches("(|a)+", "aaa"));
}

TEST(NamePatternTest, Sets) {
  EXPECT_TRUE(matches("[a-cx]+", "abxc"));
  EXPECT_FALSE(matches("[a-cx]+", "d"));
  EXPECT_TRUE(matches("[^0-9.]+", "name"));
  EXPECT_FALSE(matches("[^0-9.]+", "name.0"));
  EXPECT_TRUE(matches("[]a]+", "]a"));
  EXPECT_TRUE(matches(R"([\d_-]+)", "1_-2"));
  EXPECT_TRUE(matches(R"(\w+\W\s\S\D)", "a_1. xy"));
  EXPECT_FALSE(matches(R"(\D)", "7"));
  EXPECT_FALSE(matches(".", "\n"));
}

TEST(NamePatternTest, BeginAndEnd) {
  EXPECT_TRUE(matches("^a$", "a"));
  EXPECT_TRUE(matches("^a|^b$", "b"));
  EXPECT_FALSE(matches("a^b", "ab"));
  EXPECT_FALSE(matches("a$b", "ab"));
}

TEST(NamePatternTest, FoundInTheMiddle) {
  EXPECT_TRUE(NamePattern("layers.0").is_found_in("model.layers.0.attn"));
  EXPECT_TRUE(NamePattern("attn").is_found_in("model.attn"));
  EXPECT_FALSE(NamePattern("^layers").is_found_in("model.layers"));
  EXPECT_FALSE(NamePattern("layers$").is_found_in("layers.0"));
  EXPECT_TRUE(NamePattern("").is_found_in("x"));
}

TEST(NamePatternTest, TakesNoExponentialTimeAndNoStack) {
  EXPECT_FALSE(matches("(a*)*(a|a)*(a+)+b", std::string(20'000, 'a')));
  EXPECT_TRUE(matches(".*", std::string(1'000'000, 'a')));
}

TEST(NamePatternTest, SaysWhatIsWrongAndWhere) {
  const std::vector<std::pair<const char*, const char*>> wrong = {
      {"a(b", "character 4: ')' is missing"},
      {"a)b", "character 2: ')' without '('"},
      {"[ab", "character 4: ']' is missing"},
      {"*a", "character 1: nothing in front of '*'"},
      {"a|+", "character 3: nothing in front of '+'"},
      {"a**", "character 3: repeated twice"},
      {"a*+", "character 3: repeated twice"},
      {"a{2", "character 4: '}' is missing"},
      {"a{x}", "character 3: a number is missing"},
      {"a{3,2}", "smaller than the first"},
      {"a\\", "nothing behind '\\'"},
      {R"(\bname)", R"(character 2: '\b' is not known)"},
      {R"((a)\1)", R"('\1' is not known)"},
      {"(?=a)", "only '(?:' is known"},
      {"(?P<name>a)", "only '(?:' is known"},
      {"[z-a]", "ends before it begins"},
      {"[a-\\d]", "a character at each end"},
      {"a{99999}", "too large"},
      {"((a{100}){100}){100}", "too large"},
  };
  for (const auto& [pattern, what] : wrong) {
    try {
      const NamePattern parsed(pattern);
      ADD_FAILURE() << pattern;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_THAT(error.message(), HasSubstr(what)) << pattern;
    }
  }
  EXPECT_THROW(NamePattern(std::string(5000, '(')), Error);
}

RC_GTEST_PROP(NamePatternTest, EscapedTextMatchesItselfAlone, (const std::string& text)) {
  std::string pattern;
  for (const char c : text) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!plain) pattern += '\\';
    pattern += c;
  }
  const NamePattern parsed(pattern);
  RC_ASSERT(parsed.matches(text));
  RC_ASSERT(!parsed.matches(text + "x"));
  RC_ASSERT(parsed.is_found_in("<" + text + ">"));
}

}  // namespace
}  // namespace accel
