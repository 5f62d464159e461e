#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/files/atomic_file.hpp"
#include "base/log.hpp"
#include "base/visible.hpp"
#include "cli/launch/launch_flags.hpp"
#include "cli/launch/starter.hpp"
#include "cli/line/commands.hpp"
#include "cli/output/results.hpp"
#include "core/config/resolve/load_config.hpp"
#include "core/launch/world/machine.hpp"
#include "data/formats/data_formats.hpp"
#include "plan/model_plan.hpp"

namespace accel::cli {
namespace {

using Json = nlohmann::ordered_json;

struct ConfigOptions {
  StarterOptions starter;
  std::optional<std::string> output;
  int processes = 0;  ///< 0 stands for one for each GPU, or one.
  bool force = false;
};

/// The lines as a file. Names in them come from a file that anyone may have written.
std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += visible(line) + '\n';
  return text;
}

/// The memory that a rank of this configuration needs. The text is read as `accel plan` reads a file, so that
/// a configuration that is not accepted is never written.
MemoryFootprint memory_of(const ArchiveModel& model, const std::string& text, const std::string& name) {
  config::ConfigRequest request;
  request.file = name;
  request.text = text;
  request.only_plans = true;
  request.environment = environment_variable;
  request.visible_gpus = launch::visible_gpus(environment_variable);
  const config::LoadedConfig loaded = config::load_config(request);
  const ModelPlan plan = plan_model(model, loaded.config);
  for (const std::string& warning : plan.warnings) log::warn(warning);
  return footprint_of(model, plan, loaded.config).memory;
}

void write_file(const std::string& path, const std::string& text, bool force) {
  AtomicFile file(path, force ? AtomicFile::Existing::kReplace : AtomicFile::Existing::kRefuse);
  file.append(text);
  file.commit();
}

Json document_of(const Starter& starter, const MemoryFootprint& memory, const ConfigOptions& options,
                 const std::string& text) {
  Json inputs = Json::array();
  for (const StarterInput& input : starter.inputs)
    inputs.push_back({{"argument", input.argument}, {"field", input.field}});
  Json document{{"model", starter.options.model},
                {"elements", starter.elements},
                {"trainable_elements", starter.trainable},
                {"parameter_bytes", starter.bytes},
                {"has_weights", starter.has_values},
                {"weights", starter.options.weights ? Json(*starter.options.weights) : Json()},
                {"layer_classes", starter.layer_classes},
                {"layer_classes_are_noted", starter.classes_are_noted},
                {"inputs", std::move(inputs)},
                {"targets", starter.is_own_loss ? Json() : Json(starter.targets)},
                {"loss", starter.is_own_loss ? "model" : "cross_entropy"},
                {"is_sharded", starter.is_sharded()},
                {"has_adapter", starter.has_adapter},
                {"num_processes", starter.options.processes},
                {"rank_bytes", memory.total_bytes}};
  document["path"] = options.output ? Json(*options.output) : Json();
  document["text"] = text;
  return document;
}

/// A name that is shown in another form than its own cannot stand in the file.
void require_visible(const std::string& name) {
  if (visible(name) == name) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("'{}' has characters that a configuration cannot hold", visible(name)))
      .hint("rename the file");
}

/// The fields of the data at `path`, if their format has names for them. Data that cannot be read are a
/// warning: the configuration may be written before they are there.
std::optional<std::vector<SampleField>> fields_of(const std::string& path) {
  const DataFormat& format = format_of_data(path);
  if (!format.has_own_fields) return std::nullopt;
  try {
    config::DataSource source;
    source.format = format.name;
    source.path = path;
    std::vector<SampleField> fields = format.open(source)->fields();
    std::erase_if(fields, [](const SampleField& field) { return !field.obstacle.empty(); });
    return fields;
  } catch (const Error& error) {
    if (is_by_signal(error.kind())) throw;
    log::warn(fmt::format("the fields of the data are not known: {}", error.message()));
    return std::nullopt;
  }
}

/// Says which inputs and targets the data lack.
void warn_of_fields(const Starter& starter) {
  const auto warn = [&](const std::string& who, const std::string& name) {
    log::warn(starter.options.fields ? fmt::format("{} '{}', and the data have no such field: they have {}",
                                                   who, name, starter.field_names())
                                     : fmt::format("{} '{}', and data of format '{}' have no such field", who,
                                                   name, starter.data_format->name));
  };
  for (const StarterInput& input : starter.inputs) {
    if (!starter.has(input)) warn("forward takes", input.argument);
  }
  if (!starter.is_own_loss && !starter.has_field(starter.targets))
    warn("the loss compares with", starter.targets);
}

ExitCode run_config(const ConfigOptions& options, const Globals& globals) {
  StarterOptions wanted = options.starter;
  require_visible(wanted.model);
  require_visible(wanted.data.value_or(""));
  require_visible(wanted.weights.value_or(""));
  require_visible(options.output.value_or(""));
  if (wanted.data) wanted.fields = fields_of(*wanted.data);
  const int gpus = wanted.use_cpu ? 0 : launch::visible_gpus(environment_variable);
  wanted.sees_gpus = gpus > 0;
  wanted.processes = options.processes > 0 ? options.processes : std::max(gpus, 1);
  // Two configurations for one model are two runs.
  wanted.name = std::filesystem::path(options.output.value_or(wanted.model)).stem();
  const OpenedModel model = open_model(wanted.model);
  const Starter starter = starter_of(model, wanted);
  warn_of_fields(starter);
  const std::string name = options.output.value_or("the configuration");
  const MemoryFootprint memory = memory_of(model.archive, joined(text_of(starter, {})), name);
  const std::vector<std::string> lines = text_of(starter, memory);
  const std::string text = joined(lines);
  if (options.output) write_file(*options.output, text, options.force);
  if (globals.json) {
    globals.out->json(document_of(starter, memory, options, text));
  } else if (options.output) {
    globals.out->line(fmt::format("{}: a configuration for '{}'", *options.output, wanted.model));
  } else {
    globals.out->lines(lines);
  }
  return ExitCode::kSuccess;
}

}  // namespace

void add_config(CommandLine& line) {
  Command command =
      line.add("config", "Write a first configuration for training a model file",
               "\nWhat the model file does not say is a guess, and a comment beside it says so.\n");
  const auto options = std::make_shared<ConfigOptions>();
  command.positional("MODEL", options->starter.model, "A TorchScript file, or one of torch.export (.pt2)");
  command.text("-o,--output", "FILE", options->output, "File to write (stdout)");
  command.text(
      "--data", "PATH", options->starter.data,
      "Training data: text; tokens if the name ends in .npy or .bin; tensors if in .safetensors; documents "
      "of accel-export --tokenize");
  command.text("--weights", "PATH", options->starter.weights,
               "Weights to begin with: a directory, safetensors or a checkpoint (those of MODEL)");
  command.integer("--num-processes", "N", options->processes, "Number of ranks (one per visible GPU, else 1)",
                  1, 65536);
  command.flag("--cpu,--use-cpu", options->starter.use_cpu, "Train on the CPU");
  command.flag("--force", options->force, "Replace the file if it is already there");
  command.does([options](const Globals& globals) { return run_config(*options, globals); });
}

}  // namespace accel::cli
