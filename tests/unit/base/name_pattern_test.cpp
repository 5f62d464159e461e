#include "base/name_pattern.hpp"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <cctype>
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

TEST(NamePatternTest, ReplacesEachMatch) {
  const NamePattern pattern(R"((\w+)\.gamma\b)");
  EXPECT_EQ(pattern.replaced_in("h.norm.gamma", R"(\1.weight)"), "h.norm.weight");
  EXPECT_EQ(pattern.replaced_in("h.norm.gammas", R"(\1.weight)"), "h.norm.gammas");
  EXPECT_EQ(NamePattern("a").replaced_in("banana", ""), "bnn");
  EXPECT_EQ(NamePattern("^").replaced_in("wte", "model."), "model.wte");
  EXPECT_EQ(pattern.text(), R"((\w+)\.gamma\b)");
  pattern.check_replacement(R"(\1)");
  EXPECT_THROW(pattern.check_replacement(R"(\2)"), Error);
}

TEST(NamePatternTest, RepeatsAlternativesAndGroups) {
  EXPECT_TRUE(matches(R"(.*layers\.\d+)", "model.layers.10"));
  EXPECT_FALSE(matches(R"(.*layers\.\d+)", "model.layers.10.attn"));
  EXPECT_TRUE(matches("a|bc|d", "bc"));
  EXPECT_TRUE(matches("a|bc|d", "d"));
  EXPECT_TRUE(matches("a|ab", "ab"));
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

TEST(NamePatternTest, SaysWhatIsWrong) {
  const std::vector<std::pair<const char*, const char*>> wrong = {
      {"a(b", "missing ): a(b"},
      {"a)b", "unexpected ): a)b"},
      {"[ab", "missing ]: [ab"},
      {"*a", "no argument for repetition operator: *"},
      {"a|+", "no argument for repetition operator: +"},
      {"a**", "bad repetition operator: **"},
      {"a*+", "bad repetition operator: *+"},
      {"a{3,2}", "invalid repetition size: {3,2}"},
      {"a\\", "trailing \\"},
      {R"(\Z)", R"(invalid escape sequence: \Z)"},
      {R"((a)\1)", R"('\1' is not supported)"},
      {R"(\012)", R"('\0' is not supported)"},
      {R"(\pL)", R"('\p' is not supported)"},
      {"a{,3}", "'{,' is not supported; write '{0,'"},
      {"[a[:alpha:]]", "'[:' inside '[ ]' is not supported"},
      {"(?=a)", "(?="},
      {"(?<!a)", "(?<"},
      {"(?P=name)", "(?P"},
      {"[z-a]", "invalid character class range: z-a"},
      {"[a-\\d]", "invalid escape sequence: \\d"},
      {"a{99999}", "invalid repetition size: {99999}"},
      {"((a{100}){100}){100}", "invalid repetition size: {100}"},
  };
  for (const auto& [pattern, what] : wrong) {
    try {
      const NamePattern parsed(pattern);
      ADD_FAILURE() << pattern;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_THAT(error.message(), HasSubstr(std::string("the pattern '") + pattern + "' is not valid: "));
      EXPECT_THAT(error.message(), HasSubstr(what)) << pattern;
      EXPECT_THAT(error.advice(), HasSubstr("without look-around")) << pattern;
    }
  }
  EXPECT_THROW(NamePattern(std::string(5000, '(')), Error);
}

TEST(NamePatternTest, ReadsBracesSetsAndFlagsAsPython) {
  EXPECT_TRUE(matches("a{x}", "a{x}"));
  EXPECT_TRUE(matches("a{2", "a{2"));
  EXPECT_TRUE(matches("[:]", ":"));
  EXPECT_TRUE(matches("[^]:]", "a"));
  EXPECT_FALSE(matches("[]:]", "a"));
  EXPECT_TRUE(matches("[{,]+", "{,"));
  EXPECT_TRUE(matches(R"(\{,)", "{,"));
  EXPECT_TRUE(matches("(?i)Layers", "lAYERS"));
  EXPECT_FALSE(matches("Layers", "layers"));
  EXPECT_TRUE(matches("(?P<name>a)", "a"));
  EXPECT_TRUE(NamePattern(R"(\bh\b)").is_found_in("model.h.0"));
}

RC_GTEST_PROP(NamePatternTest, EscapedTextMatchesItselfAlone, (const std::string& text)) {
  std::string pattern;
  for (const char c : text) {
    if (c >= 0 && std::isalnum(c) == 0) pattern += '\\';
    pattern += c;
  }
  const NamePattern parsed(pattern);
  RC_ASSERT(parsed.matches(text));
  RC_ASSERT(!parsed.matches(text + "x"));
  RC_ASSERT(parsed.is_found_in("<" + text + ">"));
}

}  // namespace
}  // namespace accel
