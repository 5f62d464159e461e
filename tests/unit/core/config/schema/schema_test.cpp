#include "core/config/schema/schema.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/text.hpp"

namespace accel::config {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;

std::vector<Field> all_fields() {
  std::vector<Field> all;
  for (const auto table : field_tables()) {
    all.insert(all.end(), table.begin(), table.end());
  }
  return all;
}

TEST(ConfigSchemaTest, NoPathIsListedTwiceOrIsASectionToo) {
  std::set<std::string_view> seen;
  for (const Field& field : all_fields()) {
    EXPECT_TRUE(seen.insert(field.path).second) << field.path;
    EXPECT_FALSE(is_section(field.path)) << field.path;
  }
}

TEST(ConfigSchemaTest, WhatIsBuiltIsAmongTheChoices) {
  for (const Field& field : all_fields()) {
    if (field.choices.empty() || field.built == kEverything) continue;
    const std::vector<std::string> choices = split(field.choices, '|');
    for (const std::string& built : split(field.built, '|'))
      EXPECT_THAT(choices, Contains(built)) << field.path;
  }
}

TEST(ConfigSchemaTest, PathsHaveNoOptionalPrefix) {
  for (const Field& field : all_fields()) {
    const std::size_t dot = field.path.rfind('.');
    if (dot == std::string_view::npos) continue;
    const std::string_view prefix = section_prefix(field.path.substr(0, dot));
    EXPECT_TRUE(prefix.empty() || !field.path.substr(dot + 1).starts_with(prefix)) << field.path;
  }
}

TEST(ConfigSchemaTest, KeysHaveOneNameWithoutPrefix) {
  EXPECT_EQ(canonical_key("fsdp_config", "fsdp_version"), "version");
  EXPECT_EQ(canonical_key("fsdp_config", "version"), "version");
  EXPECT_EQ(canonical_key("fsdp_config", "fsdp_backward_prefetch_policy"), "backward_prefetch");
  EXPECT_EQ(canonical_key("fp8_config", "backward_prefetch_policy"), "backward_prefetch_policy");
  EXPECT_EQ(canonical_key("", "fsdp_version"), "fsdp_version");
}

TEST(ConfigSchemaTest, SystemsThatDependOnTheValueAreThoseOfChoices) {
  for (const Field& field : all_fields()) {
    if (field.system.find('=') == std::string_view::npos) continue;
    const std::vector<std::string> choices = split(field.choices, '|');
    const std::vector<std::string> built = split(field.built, '|');
    std::vector<std::string> named;
    for (const std::string& part : split(field.system, '|')) named.push_back(part.substr(0, part.find('=')));
    for (const std::string& choice : choices) {
      const bool is_built = std::find(built.begin(), built.end(), choice) != built.end();
      EXPECT_EQ(std::count(named.begin(), named.end(), choice), is_built ? 0 : 1)
          << field.path << " " << choice;
    }
  }
}

TEST(ConfigSchemaTest, FindsFieldsAndSections) {
  ASSERT_NE(find_field("training.optimizer.lr"), nullptr);
  EXPECT_EQ(find_field("training.optimizer"), nullptr);
  EXPECT_EQ(find_field("lr"), nullptr);
  EXPECT_TRUE(is_below("training.optimizer.lr", "training"));
  EXPECT_TRUE(is_below("training", ""));
  EXPECT_FALSE(is_below("training.optimizer", "training.optimizer"));
  EXPECT_FALSE(is_below("training.optimizers", "training.optimizer"));
  EXPECT_TRUE(is_section(""));
  EXPECT_TRUE(is_section("training.data.train"));
  EXPECT_FALSE(is_section("training.dat"));
  EXPECT_THAT(names_in_section("training.data"), Contains("eval"));
  EXPECT_THAT(names_in_section("nothing"), IsEmpty());
}

}  // namespace
}  // namespace accel::config
