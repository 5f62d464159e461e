#include "core/config/keys/common_settings.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::config {
namespace {

using ::testing::Contains;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

TEST(CommonSettingsTest, WhatIsOfOneMachineIsLeftOut) {
  Config config;
  config.launch.machine_rank = 1;
  config.launch.gpu_ids = {0, 1};
  config.training.emplace().model.path = "gpt.pt";
  const auto settings = common_settings(config);
  for (const char* own : {"machine_rank", "gpu_ids", "launch.local_processes"})
    EXPECT_THAT(settings, Not(Contains(Key(own))));
  EXPECT_THAT(settings, Contains(Pair("num_processes", "1")));
  EXPECT_THAT(settings, Contains(Pair("training.model.path", "gpt.pt")));
}

TEST(CommonSettingsTest, DifferencesAreNamedByKey) {
  EXPECT_EQ(differences({{"a", "1"}}, {{"a", "1"}}, "there"), "");
  EXPECT_EQ(differences({{"a", "1"}, {"b", "2"}}, {{"b", "3"}, {"c", "4"}}, "there"),
            "a is 1, there not set; b is 2, there 3; c is not set, there 4");
  std::map<std::string, std::string> many;
  for (char name = 'a'; name < 'i'; ++name) many[std::string(1, name)] = "1";
  EXPECT_EQ(
      differences(many, {}, "there"),
      "a is 1, there not set; b is 1, there not set; c is 1, there not set; d is 1, there not set; e is 1, "
      "there not set; and 3 more");
}

}  // namespace
}  // namespace accel::config
