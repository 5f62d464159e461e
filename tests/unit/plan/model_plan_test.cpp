#include "plan/model_plan.hpp"

#include <gmock/gmock.h>

namespace accel {
namespace {

using ::testing::ElementsAre;

TEST(ModelPlanTest, TheConfigurationsClassesWin) {
  const ModelNotes notes{{"Block"}, {}};
  EXPECT_THAT(with_notes({}, notes).transformer_layer_cls_to_wrap, ElementsAre("Block"));
  config::FsdpConfig config;
  config.transformer_layer_cls_to_wrap = {"Mine"};
  EXPECT_THAT(with_notes(config, notes).transformer_layer_cls_to_wrap, ElementsAre("Mine"));
}

TEST(ModelPlanTest, AnErrorSaysWhoNamesTheClasses) {
  const ModelNotes notes{{"Block"}, {}};
  config::FsdpConfig config;
  config.wrap_origin = "a.yaml:1:2: 'fsdp_config.auto_wrap_policy: TRANSFORMER_BASED_WRAP'";
  EXPECT_EQ(with_notes(config, {}).wrap_origin, config.wrap_origin);
  EXPECT_EQ(with_notes(config, notes).wrap_origin, "the model file's accel.json, 'layer_classes'");
  config.transformer_layer_cls_to_wrap = {"Mine"};
  EXPECT_EQ(with_notes(config, notes).wrap_origin, config.wrap_origin);
}

}  // namespace
}  // namespace accel
