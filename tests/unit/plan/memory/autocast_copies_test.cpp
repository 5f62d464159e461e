#include "plan/memory/autocast_copies.hpp"

#include <gmock/gmock.h>

#include "plan/memory/footprint.hpp"
#include "plan/units/unit_plan.hpp"

namespace accel {
namespace {

using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

/// A language model that begins with a convolution. Among its parameters are a tied one, those of a batch
/// norm, a bias and a table of positions.
ModelStructure model() {
  ModelStructure model;
  model.modules = {{"", "GPT"},
                   {"conv", "PatchEmbedding"},
                   {"norm", "BatchNorm2d"},
                   {"tokens", "Embedding"},
                   {"positions", "EmbeddingBag"},
                   {"up", "Linear"},
                   {"head", "Linear"}};
  model.parameters = {{{"conv.weight"}, {4, 3, 2, 2}, "float32"},
                      {{"norm.weight"}, {4}, "float32"},
                      {{"tokens.weight", "head.weight"}, {8, 4}, "float32"},
                      {{"positions.weight"}, {16, 4}, "float32"},
                      {{"up.weight"}, {4, 4}, "float32"},
                      {{"up.bias"}, {4}, "float32"}};
  return model;
}

config::PrecisionConfig autocast(const char* dtype = "float16") { return {.autocast_dtype = dtype}; }

config::PrecisionConfig version_1() {
  return {.param_dtype = "float16",
          .reduce_dtype = "float16",
          .buffer_dtype = "float16",
          .autocast_dtype = "float16"};
}

/// Elements of autocast's copies of all parameters of the model, as one unit.
std::uint64_t copied(const ModelStructure& model, const config::PrecisionConfig& precision, int ranks = 1) {
  const Footprint result = footprint_of(
      model, plan_units(model, {}),
      {.mesh = {ranks, 1}, .precision = precision, .names_without_cast = names_without_cast(model)});
  return result.units.back().cast_bytes / 2;
}

TEST(AutocastCopiesTest, TablesAndBatchNormsAreLeftAlone) {
  EXPECT_THAT(names_without_cast(model()),
              UnorderedElementsAre("tokens.weight", "positions.weight", "norm.weight"));
  ModelStructure none = model();
  for (ModuleInfo& module : none.modules) module.class_name = "Linear";
  EXPECT_THAT(names_without_cast(none), IsEmpty());
}

TEST(AutocastCopiesTest, ATableThatAnotherModuleReadsIsCopied) {
  ModelStructure read = model();
  read.parameters[3].cross_unit = true;
  EXPECT_THAT(names_without_cast(read), UnorderedElementsAre("tokens.weight", "norm.weight"));
}

TEST(AutocastCopiesTest, OneCopyOfEachParameterThatMayBeMultiplied) {
  EXPECT_EQ(copied(model(), autocast()), 48U + 32 + 16 + 4);
  EXPECT_EQ(copied(model(), autocast(), 2), 48U + 32 + 16 + 4);
  EXPECT_EQ(copied(model(), {}), 0U);
}

TEST(AutocastCopiesTest, ATrainedOneIsCopiedOnceAndAFrozenOneForEachUse) {
  ModelStructure twice = model();
  twice.modules.push_back({"again", "Linear"});
  twice.parameters[4].fqns.emplace_back("again.weight");
  EXPECT_EQ(copied(twice, autocast()), 48U + 32 + 16 + 4);
  twice.parameters[4].requires_grad = false;
  EXPECT_EQ(copied(twice, autocast()), 48U + 32 + 2 * 16 + 4);
}

TEST(AutocastCopiesTest, NoneOfWhatHasTheDtypeAlready) {
  ModelStructure half = model();
  half.parameters[4].dtype = "float16";
  half.parameters[4].requires_grad = false;
  EXPECT_EQ(copied(half, autocast()), 48U + 32 + 4);
  EXPECT_EQ(copied(half, autocast("bfloat16")), 48U + 32 + 16 + 4);
  half.parameters[4].dtype = "float64";  // Autocast does not cast float64.
  EXPECT_EQ(copied(half, autocast()), 48U + 32 + 4);
}

TEST(AutocastCopiesTest, OfVersionOneIgnoredParametersAlone) {
  EXPECT_EQ(copied(model(), version_1()), 0U);
  ModelStructure ignored = model();
  ignored.parameters[4].replicated = true;
  EXPECT_EQ(copied(ignored, version_1()), 16U);
}

}  // namespace
}  // namespace accel
