#include "core/config/value.hpp"

#include <gtest/gtest.h>

namespace accel::config {
namespace {

Setting number(std::int64_t value, Origin::Layer layer) { return {value, {layer, "s", 1, 2}}; }

TEST(ConfigValueTest, TextOfEachKind) {
  EXPECT_EQ(text_of(Value{}), "null");
  EXPECT_EQ(text_of(Value{true}), "true");
  EXPECT_EQ(text_of(Value{std::int64_t{-3}}), "-3");
  EXPECT_EQ(text_of(Value{0.1}), "0.1");
  EXPECT_EQ(text_of(Value{std::string("bf16")}), "bf16");
  EXPECT_EQ(text_of(Value{std::vector<std::string>{"a", "b"}}), "[a, b]");
  EXPECT_EQ(text_of(Value{std::vector<double>{0.9, 0.95}}), "[0.9, 0.95]");
}

TEST(ConfigValueTest, OriginsReadLikeCompilerMessages) {
  EXPECT_EQ(text_of(Origin{Origin::Layer::kFile, "gpt.yaml", 3, 5}), "gpt.yaml:3:5");
  EXPECT_EQ(text_of(Origin{Origin::Layer::kFlag, "--set a=1"}), "--set a=1");
  EXPECT_EQ(text_of(Origin{Origin::Layer::kEnvironment, "FSDP_VERSION"}),
            "environment variable FSDP_VERSION");
}

TEST(ConfigValueTest, HigherLayersWinAndNullHidesLowerSections) {
  Settings top;
  top.set("a", number(1, Origin::Layer::kFlag));
  top.set("training.data.eval", {std::monostate{}, {Origin::Layer::kFlag, "--set"}});
  Settings low;
  low.set("a", number(2, Origin::Layer::kFile));
  low.set("b", number(3, Origin::Layer::kFile));
  low.set("training.data.eval.path", number(4, Origin::Layer::kFile));
  low.set("training.data.evaluation", number(5, Origin::Layer::kFile));
  top.add_below(low);
  EXPECT_EQ(top.get<std::int64_t>("a"), 1);
  EXPECT_EQ(top.get<std::int64_t>("b"), 3);
  EXPECT_EQ(top.find("training.data.eval.path"), nullptr);
  EXPECT_TRUE(top.has("training.data.evaluation"));
  EXPECT_FALSE(top.has("training.data.eval"));
  EXPECT_TRUE(top.has("training.data"));
  EXPECT_FALSE(top.has("train"));
}

TEST(ConfigValueTest, WhereIsEmptyForDefaults) {
  Settings settings;
  settings.set("a", number(1, Origin::Layer::kFile));
  EXPECT_EQ(settings.where("a"), "s:1:2: ");
  EXPECT_EQ(settings.where("b"), "");
}

TEST(ConfigValueTest, WhereOfASectionIsThatOfAValueInIt) {
  Settings settings;
  settings.set("section.key", number(1, Origin::Layer::kFile));
  EXPECT_EQ(settings.where("section"), "s:1:2: ");
  EXPECT_EQ(settings.where("sec"), "");
}

}  // namespace
}  // namespace accel::config
