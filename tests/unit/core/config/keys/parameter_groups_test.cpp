#include "core/config/keys/parameter_groups.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"

namespace accel::config {
namespace {

using ::testing::HasSubstr;

std::string error_of(const Texts& section) {
  try {
    (void)group_of(section);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.advice(), HasSubstr("{match: embed"));
    return error.message();
  }
  return "no error";
}

TEST(ParameterGroupTest, HasWhatItsSectionSays) {
  const ParameterGroup group =
      group_of({{"match", "^a"}, {"lr", "1e-4"}, {"weight_decay", "0"}, {"optimizer", "sgd"}});
  EXPECT_EQ(group.match, "^a");
  EXPECT_EQ(group.lr, 1e-4);
  EXPECT_EQ(group.weight_decay, 0);
  EXPECT_EQ(group.optimizer, "sgd");
  EXPECT_FALSE(group.frozen);
  EXPECT_TRUE(group_of({{"match", "a"}, {"frozen", "True"}}).frozen);
}

TEST(ParameterGroupTest, ErrorsSayWhatIsWrong) {
  EXPECT_THAT(error_of({{"lr", "1"}}), HasSubstr("without 'match'"));
  EXPECT_THAT(error_of({{"match", "a"}, {"lr", "fast"}}),
              HasSubstr("'lr' must be a number, at least 0; found 'fast'"));
  EXPECT_THAT(error_of({{"match", "a"}, {"weight_decay", "-1"}}),
              HasSubstr("'weight_decay' must be a number, at least 0; found '-1'"));
  EXPECT_THAT(error_of({{"match", "a"}, {"lr", "inf"}}), HasSubstr("found 'inf'"));
  EXPECT_THAT(error_of({{"match", "a"}, {"frozen", "maybe"}}),
              HasSubstr("'frozen' must be true or false; found 'maybe'"));
  EXPECT_THAT(error_of({{"match", "a"}, {"frozen", "true"}, {"lr", "1"}}),
              HasSubstr("the frozen group 'a', which can have no other key"));
  EXPECT_THAT(error_of({{"match", "a"}, {"eps", "1"}}), HasSubstr("the unknown key 'eps'"));
  EXPECT_THAT(error_of({{"match", "a"}, {"optimizer", "adam2"}}), HasSubstr("found 'adam2'"));
  EXPECT_THROW((void)group_of({{"match", "("}}), Error);
}

TEST(ParameterGroupTest, IsTheSameBehindItsJson) {
  for (const Texts& section :
       {Texts{{"match", "a"}, {"lr", "0.1"}, {"weight_decay", "0.25"}},
        Texts{{"match", "b"}, {"frozen", "true"}}, Texts{{"match", "c"}, {"optimizer", "lion"}}}) {
    const ParameterGroup group = group_of(section);
    const nlohmann::json document = json_of(group);
    EXPECT_EQ(document.size(), section.size());
    const ParameterGroup again = group_from_json(document, "here");
    EXPECT_EQ(again.match, group.match);
    EXPECT_EQ(again.lr, group.lr);
    EXPECT_EQ(again.weight_decay, group.weight_decay);
    EXPECT_EQ(again.frozen, group.frozen);
    EXPECT_EQ(again.optimizer, group.optimizer);
  }
  EXPECT_THROW((void)group_from_json(5, "here"), Error);
}

}  // namespace
}  // namespace accel::config
