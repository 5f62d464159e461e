#include "structure/layer_guess.hpp"

#include <gmock/gmock.h>

namespace accel {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// A model of `modules` (name, class) whose parameters have the names and the numbers of elements.
ModelStructure model_of(std::vector<ModuleInfo> modules,
                        const std::vector<std::pair<std::string, std::int64_t>>& parameters) {
  ModelStructure model;
  model.modules = std::move(modules);
  for (const auto& [name, elements] : parameters) model.parameters.push_back({{name}, {elements}, "float32"});
  return model;
}

TEST(LayerGuessTest, TheElementsOfAList) {
  const ModelStructure model = model_of(
      {{"", "GPT"},
       {"tokens", "Embedding"},
       {"blocks", "ModuleList"},
       {"blocks.0", "Block"},
       {"blocks.0.up", "Linear"},
       {"blocks.1", "Block"},
       {"blocks.1.up", "Linear"},
       {"head", "Linear"}},
      {{"tokens.weight", 1000}, {"blocks.0.up.weight", 4}, {"blocks.1.up.weight", 4}, {"head.weight", 1000}});
  EXPECT_THAT(guess_layer_classes(model), ElementsAre("Block"));
}

TEST(LayerGuessTest, ListsInsideAListDoNotCount) {
  const ModelStructure model =
      model_of({{"", "Net"},
                {"layers", "ModuleList"},
                {"layers.0", "Layer"},
                {"layers.0.experts", "ModuleList"},
                {"layers.0.experts.0", "Expert"},
                {"layers.0.experts.0.up", "Linear"},
                {"layers.0.experts.1", "Expert"},
                {"layers.0.experts.1.up", "Linear"}},
               {{"layers.0.experts.0.up.weight", 4}, {"layers.0.experts.1.up.weight", 4}});
  EXPECT_THAT(guess_layer_classes(model), ElementsAre("Layer"));
}

TEST(LayerGuessTest, SeveralLists) {
  const ModelStructure model =
      model_of({{"", "T5"},
                {"encoder", "Sequential"},
                {"encoder.0", "Encoder"},
                {"encoder.0.up", "Linear"},
                {"encoder.1", "Encoder"},
                {"encoder.1.up", "Linear"},
                {"decoder", "ModuleList"},
                {"decoder.0", "Decoder"},
                {"decoder.0.up", "Linear"}},
               {{"encoder.0.up.weight", 4}, {"encoder.1.up.weight", 4}, {"decoder.0.up.weight", 4}});
  EXPECT_THAT(guess_layer_classes(model), ElementsAre("Decoder", "Encoder"));
}

TEST(LayerGuessTest, WithoutAListTheLargestClassThatOccursTwice) {
  const ModelStructure model = model_of({{"", "Net"},
                                         {"first", "Stage"},
                                         {"first.a", "Linear"},
                                         {"norm", "Norm"},
                                         {"second", "Stage"},
                                         {"second.a", "Linear"},
                                         {"big", "Table"},
                                         {"last", "Norm"}},
                                        {{"first.a.weight", 40},
                                         {"first.scale", 1},
                                         {"second.a.weight", 40},
                                         {"norm.weight", 8},
                                         {"last.weight", 8},
                                         {"big.weight", 1000}});
  EXPECT_THAT(guess_layer_classes(model), ElementsAre("Stage"));
}

TEST(LayerGuessTest, ASecondNameOfAModuleDoesNotMakeItRepeat) {
  ModelStructure model = model_of({{"", "Net"}, {"a", "Table"}, {"b", "Table"}}, {});
  model.parameters.push_back({{"a.weight", "b.weight"}, {8}, "float32"});
  EXPECT_THAT(guess_layer_classes(model), IsEmpty());
}

TEST(LayerGuessTest, NothingRepeats) {
  EXPECT_THAT(guess_layer_classes({}), IsEmpty());
  EXPECT_THAT(guess_layer_classes(model_of({{"", "Net"}, {"a", "Linear"}, {"b", "Norm"}},
                                           {{"a.weight", 4}, {"b.weight", 2}})),
              IsEmpty());
}

}  // namespace
}  // namespace accel
