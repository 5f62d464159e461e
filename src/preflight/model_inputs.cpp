#include "preflight/model_inputs.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>

#include "base/error.hpp"
#include "data/formats/data_formats.hpp"
#include "data/formats/sample_source.hpp"

namespace accel {
namespace {

/// Throws if an input of forward whose meaning its name tells would get another field of the data.
void check_meanings(const config::ModelConfig& config, const std::vector<std::string>& inputs) {
  for (std::size_t i = 0; i < std::min(inputs.size(), config.inputs.size()); ++i) {
    if (inputs[i] == config.inputs[i] || !is_known_input(inputs[i])) continue;
    throw Error(ErrorKind::kUsage,
                fmt::format("training.model.inputs gives '{}' to the input '{}' of forward, which takes [{}]",
                            config.inputs[i], inputs[i], fmt::join(inputs, ", ")))
        .hint(fmt::format(
            "{} data have the fields {} and {}; those of format '{}' have {}, too, and those of {} "
            "have the fields of their files, by these names; or export the model without this input",
            kTokenFormats, kTokensField, kLabelsField, kDocumentsFormat, kPositionsField, kOwnFieldsFormat));
  }
}

void check_input_order(const config::ModelConfig& config, const std::vector<std::string>& inputs) {
  if (inputs == config.inputs ||
      !std::is_permutation(inputs.begin(), inputs.end(), config.inputs.begin(), config.inputs.end()))
    return;
  throw Error(ErrorKind::kUsage, fmt::format("training.model.inputs are [{}], but forward takes [{}]",
                                             fmt::join(config.inputs, ", "), fmt::join(inputs, ", ")))
      .hint("give them in the order of forward");
}

}  // namespace

void require_inputs(const config::ModelConfig& config, const std::vector<std::string>& names) {
  check_input_order(config, names);
  check_meanings(config, names);
}

Labels labels_for(const config::ModelConfig& config, const ModelNotes& notes) {
  return config.loss == "model" && notes.shifts_labels ? Labels::kInputs : Labels::kNextTokens;
}

void require_argument_count(const config::ModelConfig& config,
                            const std::vector<ckpt::ScriptArgument>& arguments) {
  const auto needed = static_cast<std::size_t>(std::count_if(
      arguments.begin(), arguments.end(), [](const auto& argument) { return !argument.has_default; }));
  if (config.inputs.size() >= needed && config.inputs.size() <= arguments.size()) return;
  std::vector<std::string> names;
  for (const ckpt::ScriptArgument& argument : arguments)
    names.push_back(argument.has_default ? argument.name + " (may be left out)" : argument.name);
  throw Error(ErrorKind::kUsage, fmt::format("training.model.inputs are [{}], but forward takes [{}]",
                                             fmt::join(config.inputs, ", "), fmt::join(names, ", ")))
      .hint("name a field of the data for each argument of forward, in their order");
}

InputDtypes input_dtypes(const config::ModelConfig& config, const ProgramSignature& signature) {
  InputDtypes dtypes;
  for (std::size_t i = 0; i < std::min(config.inputs.size(), signature.inputs.size()); ++i) {
    if (const auto dtype = signature.inputs[i].dtype) dtypes.emplace(config.inputs[i], *dtype);
  }
  return dtypes;
}

void require_packing(const config::DataSource& source, const ModelNotes& notes) {
  if (source.packing != "best_fit" || notes.keeps_documents_apart.value_or(true)) return;
  throw Error(
      ErrorKind::kUsage,
      "packing is best_fit, but the notes of the model say that documents in one sample see each other")
      .hint("set packing: none; or export the model again and see why accel-export finds that they do");
}

}  // namespace accel
