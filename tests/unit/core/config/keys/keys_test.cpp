#include "core/config/keys/keys.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/text.hpp"
#include "core/config/keys/other_accelerators.hpp"

namespace accel::config {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;

std::vector<Key> all_keys() {
  std::vector<Key> all;
  for (const auto table : key_tables()) {
    all.insert(all.end(), table.begin(), table.end());
  }
  return all;
}

TEST(ConfigKeysTest, NoPathIsListedTwiceOrIsASectionToo) {
  std::set<std::string_view> seen;
  for (const Key& key : all_keys()) {
    EXPECT_TRUE(seen.insert(key.path).second) << key.path;
    EXPECT_FALSE(is_section(key.path)) << key.path;
  }
}

TEST(ConfigKeysTest, WhatIsBuiltIsAmongTheChoices) {
  for (const Key& key : all_keys()) {
    if (key.choices.empty() || key.built == kEverything) continue;
    const std::vector<std::string> choices = split(key.choices, '|');
    for (const std::string& built : split(key.built, '|')) EXPECT_THAT(choices, Contains(built)) << key.path;
  }
}

TEST(ConfigKeysTest, PathsHaveNoOptionalPrefix) {
  for (const Key& key : all_keys()) {
    const std::size_t dot = key.path.rfind('.');
    if (dot == std::string_view::npos) continue;
    const std::string_view prefix = section_prefix(key.path.substr(0, dot));
    EXPECT_TRUE(prefix.empty() || !key.path.substr(dot + 1).starts_with(prefix)) << key.path;
  }
}

TEST(ConfigKeysTest, KeysHaveOneNameWithoutPrefix) {
  EXPECT_EQ(canonical_key("fsdp_config", "fsdp_version"), "version");
  EXPECT_EQ(canonical_key("fsdp_config", "version"), "version");
  EXPECT_EQ(canonical_key("fsdp_config", "fsdp_backward_prefetch_policy"), "backward_prefetch");
  EXPECT_EQ(canonical_key("fp8_config", "backward_prefetch_policy"), "backward_prefetch_policy");
  EXPECT_EQ(canonical_key("", "fsdp_version"), "fsdp_version");
}

TEST(ConfigKeysTest, SystemsThatDependOnTheValueAreThoseOfChoices) {
  for (const Key& key : all_keys()) {
    if (key.system.find('=') == std::string_view::npos) continue;
    const std::vector<std::string> choices = split(key.choices, '|');
    const std::vector<std::string> built = split(key.built, '|');
    std::vector<std::string> named;
    for (const std::string& part : split(key.system, '|')) named.push_back(part.substr(0, part.find('=')));
    for (const OtherAccelerator& row : kOtherAccelerators) {
      if (key.path == "distributed_type") named.emplace_back(row.distributed_type);
    }
    for (const std::string& choice : choices) {
      const bool is_built = std::find(built.begin(), built.end(), choice) != built.end();
      EXPECT_EQ(std::count(named.begin(), named.end(), choice), is_built ? 0 : 1)
          << key.path << " " << choice;
    }
  }
}

TEST(ConfigKeysTest, FindsKeysAndSections) {
  ASSERT_NE(find_key("training.optimizer.lr"), nullptr);
  EXPECT_EQ(find_key("training.optimizer"), nullptr);
  EXPECT_EQ(find_key("lr"), nullptr);
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
