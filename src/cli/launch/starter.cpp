#include "cli/launch/starter.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <string_view>
#include <utility>

#include "base/checked.hpp"
#include "ckpt/tensor/dtype.hpp"
#include "data/files/token_file.hpp"
#include "data/formats/sample_source.hpp"
#include "data/needed_fields.hpp"
#include "structure/layer_guess.hpp"
#include "structure/model_notes.hpp"
#include "structure/table_sizes.hpp"

namespace accel::cli {
namespace {

void count_parameters(const ModelStructure& model, Starter& starter) {
  for (const ParameterInfo& parameter : model.parameters) {
    const std::int64_t elements = checked_numel(parameter.shape);
    starter.elements = checked_add(starter.elements, elements);
    if (parameter.requires_grad) starter.trainable = checked_add(starter.trainable, elements);
    if (const auto dtype = ckpt::dtype_of_torch_name(parameter.dtype))
      starter.bytes = checked_add(starter.bytes, checked_nbytes(parameter.shape, ckpt::item_bytes(*dtype)));
  }
}

void choose_classes(const ModelStructure& model, const ModelNotes& notes, Starter& starter) {
  std::set<std::string> there;
  for (const ModuleInfo& module : model.modules) there.insert(module.class_name);
  for (const std::string& name : notes.layer_classes) {
    if (there.contains(name)) starter.layer_classes.push_back(name);
  }
  starter.classes_are_noted =
      !starter.layer_classes.empty() || (notes.names_layers && notes.layer_classes.empty());
  if (!starter.classes_are_noted) starter.layer_classes = guess_layer_classes(model);
}

/// PEFT puts the parameters of an adapter into a module or a dict whose member "default" they are:
/// `q.lora_A.default.weight`, `k.ia3_l.default`. The name before it says the kind.
std::string part_of_adapter_name(const std::string& fqn) {
  const std::size_t end = fqn.find(".default");
  if (end == std::string::npos) return fqn;
  const std::size_t dot = fqn.rfind('.', end - 1);
  const std::string part = fqn.substr(dot + 1, end - dot - 1);
  return part.starts_with("lora_") ? "lora_" : part;
}

std::vector<std::string> adapter_names_of(const ModelStructure& model) {
  std::set<std::string> parts;
  for (const ParameterInfo& parameter : model.parameters) {
    if (parameter.requires_grad) parts.insert(part_of_adapter_name(parameter.fqns.front()));
  }
  return {parts.begin(), parts.end()};
}

bool is_name_of_labels(std::string_view name) {
  constexpr std::array<std::string_view, 4> kNames = {"labels", "label", "targets", "target"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

/// Whether the program says that its input `i` is not of integers, so that it takes no tokens.
bool takes_floats(const OpenedModel& model, std::size_t i) {
  if (!model.signature || i >= model.signature->inputs.size()) return false;
  const auto& dtype = model.signature->inputs[i].dtype;
  return dtype == ckpt::DType::kFloat16 || dtype == ckpt::DType::kBFloat16 ||
         dtype == ckpt::DType::kFloat32 || dtype == ckpt::DType::kFloat64;
}

/// Gives each argument a field of a batch: labels by their name, and the tokens to the first other argument,
/// unless its name or its dtype says that it takes something else or the data have a name for each.
void choose_inputs(const OpenedModel& model, const ModelNotes& notes, Starter& starter) {
  std::vector<std::string> names = notes.inputs;
  if (names.empty()) {
    for (const ckpt::ScriptArgument& argument : model.archive.forward_arguments())
      (argument.has_default ? starter.left_out : names).push_back(argument.name);
  }
  const bool has_ids = std::find(names.begin(), names.end(), "input_ids") != names.end();
  const bool has_names = starter.options.data && format_of_data(*starter.options.data).has_own_fields;
  bool is_first = true;
  for (std::size_t i = 0; i < names.size(); ++i) {
    std::string& name = names[i];
    std::string field = is_name_of_labels(name) ? "labels" : name;
    if (field != "labels") {
      const bool may_be_tokens = !is_known_input(name) && !takes_floats(model, i);
      if (is_first && !has_ids && !has_names && may_be_tokens) field = "input_ids";
      is_first = false;
    }
    starter.inputs.push_back({std::move(name), std::move(field)});
  }
}

void choose_loss(const ModelNotes& notes, Starter& starter) {
  const auto loss = std::find(notes.outputs.begin(), notes.outputs.end(), "loss");
  starter.loss_is_noted = loss != notes.outputs.end();
  const bool takes_labels = std::any_of(starter.inputs.begin(), starter.inputs.end(),
                                        [](const StarterInput& input) { return input.field == "labels"; });
  // Notes that name the results, and no loss among them, say that the labels are for something else.
  starter.is_own_loss = starter.loss_is_noted || (takes_labels && notes.outputs.empty());
  starter.shifts_labels = notes.shifts_labels;
  const auto wanted =
      starter.loss_is_noted ? loss : std::find(notes.outputs.begin(), notes.outputs.end(), "logits");
  if (wanted != notes.outputs.end())
    starter.output = static_cast<std::size_t>(wanted - notes.outputs.begin());
}

bool is_whole_number(ckpt::DType dtype) {
  return dtype == ckpt::DType::kInt8 || dtype == ckpt::DType::kInt16 || dtype == ckpt::DType::kInt32 ||
         dtype == ckpt::DType::kInt64 || dtype == ckpt::DType::kUInt8;
}

/// The field of the data that holds the labels: the one with such a name, or the only one of whole numbers
/// that is not an input of models, an argument of forward or a picture of uint8, if there are others. Empty
/// if neither is there.
std::string field_of_labels(const std::vector<SampleField>& fields, const std::vector<StarterInput>& inputs) {
  const auto is_argument = [&](const SampleField& field) {
    return std::any_of(inputs.begin(), inputs.end(),
                       [&](const StarterInput& input) { return input.argument == field.name; });
  };
  std::string only;
  std::size_t count = 0;
  for (const SampleField& field : fields) {
    if (is_name_of_labels(field.name) || field.name == "y") return field.name;
    const bool is_picture = field.dtype == ckpt::DType::kUInt8 && !field.shape.empty();
    const bool is_input = is_known_input(field.name) || is_beside_tokens(field.name) || is_argument(field);
    if (!is_whole_number(field.dtype) || is_picture || is_input) continue;
    only = field.name;
    ++count;
  }
  return count == 1 && fields.size() > 1 ? only : "";
}

/// Gives the arguments fields that the data have. An argument whose name none of them has gets the field that
/// is left, if only one argument and one field are left.
void match_fields(const std::vector<SampleField>& fields, Starter& starter) {
  const auto has = [&](const std::string& name) {
    return std::any_of(fields.begin(), fields.end(), [&](const auto& field) { return field.name == name; });
  };
  std::set<std::string> left;
  for (const SampleField& field : fields) left.insert(field.name);
  const std::string labels = has(starter.targets) ? starter.targets : field_of_labels(fields, starter.inputs);
  if (!labels.empty()) starter.targets = labels;
  starter.targets_are_guess =
      has(starter.targets) && !is_name_of_labels(starter.targets) && starter.targets != "y";
  std::vector<StarterInput*> without;
  for (StarterInput& input : starter.inputs) {
    if (has(input.argument)) {
      input.field = input.argument;
    } else if (input.field == "labels" && !labels.empty()) {
      input.field = labels;
    }
    if (left.erase(input.field) == 0) without.push_back(&input);
  }
  if (!starter.is_own_loss) left.erase(starter.targets);
  if (without.size() != 1 || left.size() != 1) return;
  without.front()->field = *left.begin();
  without.front()->is_guess = true;
}

void choose_data(const ModelStructure& model, const ModelNotes& notes, Starter& starter) {
  const TableSizes sizes = table_sizes(model);
  starter.vocabulary = sizes.tokens;
  starter.positions = sizes.positions;
  const bool needs_more = std::any_of(starter.inputs.begin(), starter.inputs.end(),
                                      [](const StarterInput& input) { return !input.is_token(); });
  const auto fits = [&](const DataFormat& format) {
    return format.has_own_fields == needs_more &&
           (format.tokens == 0 || format.tokens == sizes.tokens.value_or(format.tokens));
  };
  starter.data_format = starter.options.data ? &format_of_data(*starter.options.data)
                                             : std::find_if(kDataFormats.begin(), kDataFormats.end(), fits);
  // Documents are left out beyond that length, which is trl's.
  const std::int64_t length = starter.data_format->has_documents ? 1024 : 128;
  const std::int64_t most = sizes.positions.value_or(notes.max_positions.value_or(length));
  starter.sequence_length = std::clamp<std::int64_t>(most, 1, length);
  starter.data_path = starter.options.data.value_or(std::string(starter.data_format->example));
  if (starter.data_format == &kDataFormats.front()) require_text_name(starter.data_path);
  if (sizes.tokens) require_vocabulary(*starter.data_format, *sizes.tokens);
  if (!starter.data_format->has_own_fields) return;
  for (StarterInput& input : starter.inputs) {
    if (input.field != "labels") input.field = input.argument;
  }
  if (starter.options.fields) match_fields(*starter.options.fields, starter);
}

}  // namespace

bool Starter::has_field(const std::string& name) const {
  if (!options.fields) return true;
  return std::any_of(options.fields->begin(), options.fields->end(),
                     [&](const SampleField& field) { return field.name == name; });
}

std::string Starter::field_names() const {
  std::vector<std::string> names;
  for (const SampleField& field : options.fields.value_or(std::vector<SampleField>()))
    names.push_back(field.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

bool Starter::may_pack() const {
  const auto takes = [&](std::string_view field) {
    return std::any_of(inputs.begin(), inputs.end(),
                       [&](const StarterInput& input) { return input.field == field; });
  };
  return data_format->has_documents && takes(kPositionsField) && !takes(kAttentionField);
}

const DataFormat& format_of_data(const std::string& path) {
  const auto* const known = std::find_if(
      kDataFormats.begin(), kDataFormats.end(),
      [&](const DataFormat& format) { return format.recognizes != nullptr && format.recognizes(path); });
  if (known != kDataFormats.end()) return *known;
  const std::string extension = std::filesystem::path(path).extension();
  const auto has_extension = [&](const DataFormat& format) {
    return std::find(format.extensions.begin(), format.extensions.end(), extension) !=
           format.extensions.end();
  };
  const auto* const found = extension.empty()
                                ? kDataFormats.end()
                                : std::find_if(kDataFormats.begin(), kDataFormats.end(), has_extension);
  return found == kDataFormats.end() ? kDataFormats.front() : *found;
}

Starter starter_of(const OpenedModel& model, const StarterOptions& options) {
  Starter starter;
  starter.options = options;
  const ModelStructure structure = model.archive.structure({});
  const ModelNotes notes = parse_notes(model.archive.accel_json());
  if (!structure.modules.empty()) starter.class_name = structure.modules.front().class_name;
  starter.has_values = model.has_values;
  starter.is_exported = notes.is_exported;
  starter.dtype = notes.dtype;
  starter.has_adapter = !notes.adapter_config.empty();
  count_parameters(structure, starter);
  choose_classes(structure, notes, starter);
  choose_inputs(model, notes, starter);
  choose_loss(notes, starter);
  choose_data(structure, notes, starter);
  if (starter.has_adapter) starter.adapter_names = adapter_names_of(structure);
  return starter;
}

}  // namespace accel::cli
