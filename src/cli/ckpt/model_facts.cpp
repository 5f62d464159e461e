#include "cli/ckpt/model_facts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "import/open_model.hpp"
#include "structure/compiled_layers.hpp"
#include "structure/layer_guess.hpp"
#include "structure/model_notes.hpp"

namespace accel::cli {
namespace {

using Json = nlohmann::ordered_json;

std::vector<ModelInput> inputs_of(const ArchiveModel& archive, const ModelNotes& notes) {
  std::vector<ModelInput> inputs;
  for (ckpt::ScriptArgument& argument : archive.forward_arguments())
    inputs.push_back({std::move(argument.name), std::move(argument.type), argument.has_default});
  // An exporter notes the names that the model had in Python.
  for (std::size_t i = 0; i < notes.inputs.size(); ++i) {
    if (i == inputs.size()) inputs.emplace_back();
    inputs[i].name = notes.inputs[i];
  }
  return inputs;
}

std::vector<ModelLayers> layers_of(const ModelStructure& model, const ModelNotes& notes) {
  std::vector<std::string> classes = notes.layer_classes;
  if (!notes.names_layers) classes = guess_layer_classes(model);
  std::vector<ModelLayers> layers;
  for (std::string& name : classes) {
    const auto modules = std::count_if(model.modules.begin(), model.modules.end(),
                                       [&](const ModuleInfo& module) { return module.class_name == name; });
    if (modules > 0) layers.push_back({std::move(name), static_cast<std::size_t>(modules)});
  }
  return layers;
}

ModelFacts facts_of(const OpenedModel& model) {
  const ModelStructure structure = model.archive.structure({});
  const ModelNotes notes = parse_notes(model.archive.accel_json());
  ModelFacts facts;
  if (!structure.modules.empty()) facts.class_name = structure.modules.front().class_name;
  facts.inputs = inputs_of(model.archive, notes);
  facts.outputs = notes.outputs;
  facts.returns = model.archive.forward_result();
  facts.layers = layers_of(structure, notes);
  for (const ParameterInfo& parameter : structure.parameters) {
    if (parameter.fqns.size() > 1) facts.ties.push_back(parameter.fqns);
    facts.elements = checked_add(facts.elements, checked_numel(parameter.shape));
  }
  facts.parameters = structure.parameters.size();
  facts.has_weights = model.has_values;
  facts.tp_heads = notes.tp_heads;
  if (const std::string& text = model.archive.compiled_json(); !text.empty())
    facts.compiled = parse_compiled_layers(text).summary();
  return facts;
}

std::string text_of(const ModelInput& input) {
  return fmt::format("{}{}{}{}", input.name, input.type.empty() ? "" : ": ", input.type,
                     input.has_default ? " (optional)" : "");
}

}  // namespace

ModelFacts model_facts(const std::filesystem::path& path) {
  try {
    return facts_of(open_model(path));
  } catch (const Error& error) {
    if (is_by_signal(error.kind())) throw;
    ModelFacts facts;
    facts.refusal = error.message();
    return facts;
  }
}

std::vector<std::string> lines_of(const ModelFacts& facts) {
  if (facts.refusal) return {"  accel cannot train it: " + *facts.refusal};
  std::vector<std::string> lines;
  const auto add = [&](const char* title, const std::string& text) {
    if (!text.empty()) lines.push_back(fmt::format("  {:<12}{}", title, text));
  };
  add("class", facts.class_name);
  std::vector<std::string> texts;
  for (const ModelInput& input : facts.inputs) texts.push_back(text_of(input));
  add("inputs", fmt::format("{}", fmt::join(texts, ", ")));
  add("outputs", facts.outputs.empty() ? facts.returns : fmt::format("{}", fmt::join(facts.outputs, ", ")));
  texts.clear();
  for (const ModelLayers& layers : facts.layers)
    texts.push_back(fmt::format("{} {}", layers.modules, layers.class_name));
  add("layers", fmt::format("{}", fmt::join(texts, ", ")));
  add("parameters", fmt::format("{} with {} elements{}", facts.parameters, facts.elements,
                                facts.ties.empty() ? "" : "; tied ones count once"));
  for (const auto& names : facts.ties) add("tied", fmt::format("{}", fmt::join(names, " = ")));
  add("weights", facts.has_weights ? "in the file" : "not in the file, which has the structure alone");
  if (facts.tp_heads > 0) add("tp plan", fmt::format("for numbers of ranks that divide {}", facts.tp_heads));
  add("compiled", facts.compiled);
  return lines;
}

Json json_of(const ModelFacts& facts) {
  if (facts.refusal) return {{"refusal", *facts.refusal}};
  Json document{{"class", facts.class_name}, {"inputs", Json::array()}};
  for (const ModelInput& input : facts.inputs) {
    document["inputs"].push_back(
        {{"name", input.name}, {"type", input.type}, {"has_default", input.has_default}});
  }
  document["outputs"] = facts.outputs;
  document["returns"] = facts.returns;
  document["layers"] = Json::array();
  for (const ModelLayers& layers : facts.layers)
    document["layers"].push_back({{"class", layers.class_name}, {"modules", layers.modules}});
  document["ties"] = facts.ties;
  document["parameters"] = facts.parameters;
  document["elements"] = facts.elements;
  document["has_weights"] = facts.has_weights;
  if (facts.tp_heads > 0) document["tp_heads"] = facts.tp_heads;
  if (!facts.compiled.empty()) document["compiled"] = facts.compiled;
  return document;
}

}  // namespace accel::cli
