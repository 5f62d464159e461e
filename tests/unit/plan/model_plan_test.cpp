#include "plan/model_plan.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <string>

#include "base/error.hpp"
#include "plan/parameter_groups.hpp"
#include "small_gpt.hpp"

namespace accel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ModelStructure model() { return {{{"", "Net"}, {"blocks.0", "Block"}, {"blocks.1", "Other"}}, {}}; }

ModelNotes notes_with(std::vector<std::string> classes) {
  ModelNotes notes;
  notes.layer_classes = std::move(classes);
  return notes;
}

config::FsdpConfig by_class() {
  config::FsdpConfig config;
  config.auto_wrap_policy = config::WrapPolicy::kTransformer;
  return config;
}

std::string error_of(const config::FsdpConfig& config, const ModelNotes& notes) {
  try {
    (void)with_notes(config, notes, model());
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.message() + "\n" + error.advice();
  }
  return "";
}

TEST(ParameterGroupsTest, AreThoseOfTheOptimizersAndWhatIsFrozen) {
  config::OptimizerConfig config;
  config.type = "muon";
  config.lr = 0.5;
  config.no_decay = {"scale"};
  config.groups = {{.match = "^tokens", .lr = 0.25, .optimizer = "adamw"},
                   {.match = "inner", .frozen = true}};
  ModelStructure model = fixtures::gpt();
  OptimizerPlan plan(config);
  model = with_frozen(std::move(model), plan);
  const std::vector<ParameterGroupInfo> groups = parameter_groups(model, plan);
  std::vector<std::string> rows;
  for (const ParameterGroupInfo& its : groups)
    rows.push_back(
        fmt::format("{} {} {} {} {}", its.pattern, its.optimizer, its.lr, its.tensors, its.elements));
  EXPECT_THAT(rows, ElementsAre("^tokens adamw 0.25 1 32", " muon 0.5 1 16", " adamw 0.5 1 4",
                                " adamw 0.5 1 4", "inner none 0 1 4"));
  EXPECT_THAT(muon_warning(model, plan), IsEmpty());
  config.groups.clear();
  EXPECT_THAT(muon_warning(fixtures::gpt(), OptimizerPlan(config)), HasSubstr("Muon trains tokens.weight"));
}

TEST(ModelPlanTest, TheConfigurationsClassesWin) {
  const ModelNotes notes = notes_with({"Block"});
  EXPECT_THAT(with_notes(by_class(), notes, model()).fsdp.transformer_layer_cls_to_wrap,
              ElementsAre("Block"));
  config::FsdpConfig config = by_class();
  config.transformer_layer_cls_to_wrap = {"Mine"};
  EXPECT_THAT(with_notes(config, notes, model()).fsdp.transformer_layer_cls_to_wrap, ElementsAre("Mine"));
}

TEST(ModelPlanTest, AnErrorSaysWhoNamesTheClasses) {
  const ModelNotes notes = notes_with({"Block"});
  config::FsdpConfig config = by_class();
  config.wrap_origin = "a.yaml:1:2: 'fsdp_config.auto_wrap_policy: TRANSFORMER_BASED_WRAP'";
  EXPECT_EQ(with_notes(config, {}, model()).fsdp.wrap_origin, config.wrap_origin);
  EXPECT_THAT(with_notes(config, notes, model()).fsdp.wrap_origin, HasSubstr("the notes of the model file"));
  config.transformer_layer_cls_to_wrap = {"Mine"};
  EXPECT_EQ(with_notes(config, notes, model()).fsdp.wrap_origin, config.wrap_origin);
}

TEST(ModelPlanTest, ClassesOfTheNotesThatTheModelLacksAreLeftOut) {
  const NotedConfig some = with_notes(by_class(), notes_with({"Vision", "Block"}), model());
  EXPECT_THAT(some.fsdp.transformer_layer_cls_to_wrap, ElementsAre("Block"));
  EXPECT_THAT(some.warnings,
              ElementsAre(HasSubstr("'layer_classes') name Vision, of which the model has no")));
  const std::string none = error_of(by_class(), notes_with({"Vision", "Audio"}));
  EXPECT_THAT(none,
              HasSubstr("the notes of the model file (accel.json, 'layer_classes') name Vision, Audio"));
  EXPECT_THAT(none, HasSubstr("the model's classes are Block, Net, Other"));
  // Another policy does not ask for them.
  EXPECT_THAT(with_notes({}, notes_with({"Vision"}), model()).warnings, IsEmpty());
}

TEST(ModelPlanTest, ARunInAnotherDtypeThanTheGraphIsRefused) {
  ModelNotes notes;
  notes.dtype = "bfloat16";
  EXPECT_THAT(error_of({}, notes), HasSubstr("computes in bfloat16"));
  EXPECT_THAT(error_of({}, notes), HasSubstr("parameters in float32"));
  EXPECT_THAT(error_of({}, notes), HasSubstr("set mixed_precision: bf16"));
  config::FsdpConfig config;
  config.precision.param_dtype = "float16";
  EXPECT_THAT(error_of(config, notes), HasSubstr("parameters in float16"));
  config.precision.param_dtype = "bfloat16";
  EXPECT_EQ(error_of(config, notes), "");
  // A graph in float32 may have no casts at all, and mixed precision then works.
  notes.dtype = "float32";
  EXPECT_EQ(error_of(config, notes), "");
}

}  // namespace
}  // namespace accel
