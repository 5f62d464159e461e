#include "core/config/settings/yaml.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"

namespace accel::config {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const Origin kFile{Origin::Layer::kFile, "a.yaml"};

std::string error_of(std::string_view text) {
  try {
    (void)parse_yaml(text, kFile);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.message();
  }
  return "no error";
}

TEST(ConfigYamlTest, KeepsPlacesOrderAndQuotes) {
  const YamlNode root = parse_yaml("b: 1\na:\n  - 'x'\n  - y\n", kFile);
  ASSERT_EQ(root.entries.size(), 2U);
  EXPECT_EQ(root.entries[0].key, "b");
  EXPECT_EQ(text_of(root.entries[0].origin), "a.yaml:1:1");
  EXPECT_EQ(text_of(root.entries[0].value.origin), "a.yaml:1:4");
  const YamlNode& list = root.entries[1].value;
  ASSERT_EQ(list.items.size(), 2U);
  EXPECT_TRUE(list.items[0].quoted);
  EXPECT_FALSE(list.items[1].quoted);
  EXPECT_EQ(text_of(list.items[1].origin), "a.yaml:4:5");
}

TEST(ConfigYamlTest, KeepsDuplicatesForTheSchemaToReport) {
  EXPECT_EQ(parse_yaml("a: 1\na: 2\n", kFile).entries.size(), 2U);
}

TEST(ConfigYamlTest, NothingIsNull) {
  EXPECT_EQ(parse_yaml("", kFile).kind, YamlNode::Kind::kNull);
  EXPECT_EQ(parse_yaml("# only a comment\n", kFile).kind, YamlNode::Kind::kNull);
  EXPECT_EQ(parse_yaml("a: ~\n", kFile).entries[0].value.kind, YamlNode::Kind::kNull);
}

TEST(ConfigYamlTest, JsonIsYaml) {
  const YamlNode root = parse_yaml(R"({"a": [1, 2]})", kFile);
  EXPECT_EQ(root.entries[0].value.items.size(), 2U);
}

TEST(ConfigYamlTest, RejectsBrokenDocumentsWithTheirPlace) {
  EXPECT_THAT(error_of("a: [1,\nb: 2\n"), StartsWith("a.yaml:3:"));
  EXPECT_THAT(error_of("a: 1\n b: 2\n"), StartsWith("a.yaml:2:"));
  EXPECT_THAT(error_of("\ta: 1\n"), StartsWith("a.yaml:1:"));
  EXPECT_THAT(error_of("? [x]\n: 1\n"), HasSubstr("a.yaml:1:3: a key must be a plain word"));
  EXPECT_THAT(error_of("a: 1\n---\nb: 1\n"),
              HasSubstr("a.yaml:2:1: expected one YAML document, found a second one"));
  EXPECT_THAT(error_of("a: *nobody\n"), StartsWith("a.yaml:1:4"));
}

// yaml-cpp drops such lines.
TEST(ConfigYamlTest, RejectsUnknownDirectives) {
  EXPECT_THAT(error_of("# c\n%% num_processes: 2\na: 1\n"),
              StartsWith("a.yaml:2:1: a line that begins with %"));
  EXPECT_THAT(error_of("%foo bar\na: 1\n"), StartsWith("a.yaml:1:1: "));
}

// yaml-cpp would make empty documents from it until memory is exhausted.
TEST(ConfigYamlTest, RejectsAClosingBracketThatNothingHasOpened) {
  EXPECT_THAT(error_of("{\"a\": 1}\n}\n"), StartsWith("a.yaml:2:1: "));
  EXPECT_THAT(error_of("a: 1\n}\n"), StartsWith("a.yaml:2:"));
  EXPECT_THAT(error_of("]"), StartsWith("a.yaml:1:1"));
}

TEST(ConfigYamlTest, RejectsEndlessAndExponentialAliases) {
  EXPECT_THAT(error_of("a: &x\n  b: *x\n"), HasSubstr("too often"));
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 9; ++i) {
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int j = 0; j < 10; ++j) bomb += "*a" + std::to_string(i - 1) + (j < 9 ? ", " : "]\n");
  }
  EXPECT_THAT(error_of(bomb), HasSubstr("too often"));
}

}  // namespace
}  // namespace accel::config
