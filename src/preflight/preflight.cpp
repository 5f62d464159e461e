#include "preflight/preflight.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "ckpt/store/accelerate_names.hpp"
#include "ckpt/store/run_state.hpp"
#include "ckpt/store/saved_parts.hpp"
#include "import/open_model.hpp"
#include "plan/linears/linear_plan.hpp"
#include "plan/model_plan.hpp"
#include "plan/parameter_groups.hpp"
#include "preflight/blame.hpp"
#include "preflight/data_checks.hpp"
#include "preflight/model_inputs.hpp"
#include "structure/archive_model.hpp"
#include "structure/compiled_layers.hpp"
#include "structure/model_notes.hpp"
#include "structure/table_sizes.hpp"
#include "weights/checkpoint_weights.hpp"

namespace accel {
namespace {

/// Checks that each parameter has a value to begin with.
void check_weights(const OpenedModel& model, const ModelStructure& structure,
                   const config::LoadedConfig& loaded) {
  const config::ModelConfig& config = loaded.config.training->model;
  if (config.weights.empty()) {
    if (config.init_std || model.has_values) return;
    blamed_on("training.model.path", loaded,
              [&] { throw error_of_missing_values(structure.parameters.front().fqns.front()); });
  }
  blamed_on("training.model.weights", loaded, [&] {
    WeightNames names;
    for (const config::Rename& rule : config.rename)
      names.rename.emplace_back(rule.pattern, rule.replacement);
    names.conversions = parse_notes(model.archive.accel_json()).weight_conversions;
    const CheckpointWeights weights(structure, config.weights, CheckpointWeights::Use::kBegin, names);
  });
}

/// Checks that a checkpoint can be one of a training of this model, by what the ranks read of it. Whoever
/// changes a model needs another output_dir.
void check_resumed(const std::filesystem::path& checkpoint, const ckpt::RunState& state,
                   const ModelStructure& structure) {
  using Use = CheckpointWeights::Use;
  const auto part = ckpt::saved_part(checkpoint, ckpt::kModelStem);
  if (!part) return;  // The ranks say what is missing, and what is damaged.
  try {
    const CheckpointWeights weights(structure, *part, state.frozen_hash ? Use::kResumeAdapter : Use::kResume);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUsage) return;
    const std::string advice = error.advice().empty() ? "" : error.advice() + "; or ";
    throw Error(ErrorKind::kUsage,
                fmt::format("the run that is there is of another model: {}", error.message()))
        .hint(advice + "choose another training.output_dir for a run of this model");
  }
}

/// The state of the run whose checkpoint that is. Nothing if it cannot be read, which the ranks say.
std::optional<ckpt::RunState> state_of(const std::filesystem::path& checkpoint) {
  if (checkpoint.empty()) return std::nullopt;
  try {
    return ckpt::read_run_state(checkpoint / ckpt::kRunStateName);
  } catch (const Error& error) {
    if (is_by_signal(error.kind())) throw;
    return std::nullopt;
  }
}

/// Checks that the model has the compiled code that dynamo_backend asks for, as far as any machine can tell.
void check_compiled(const ArchiveModel& model, const config::LoadedConfig& loaded, TrainingData& found) {
  const config::CompileConfig& compile = loaded.config.training->compile;
  if (compile.backend != "INDUCTOR") return;
  const config::PrecisionConfig& precision = loaded.config.fsdp.precision;
  try {
    const char* key =
        loaded.settings.has("dynamo_config.backend") ? "dynamo_config.backend" : "dynamo_backend";
    blamed_on(key, loaded, [&] {
      (void)compiled_layers_for(model.compiled_json(), precision.param_dtype, precision.autocast_dtype);
    });
  } catch (const Error& error) {
    if (compile.fullgraph || error.kind() == ErrorKind::kCorrupt) throw;
    found.warnings_of_ranks.push_back(
        fmt::format("no layer runs compiled code: {}; {}", error.message(), error.advice()));
  }
}

}  // namespace

std::optional<TrainingData> preflight(const config::LoadedConfig& loaded, PreflightOptions options) {
  const config::TrainingConfig& training = *loaded.config.training;
  ModelFacts facts;
  TrainingData found;
  const std::optional<ckpt::RunState> state = state_of(options.checkpoint);
  if (options.has_model) {
    OpenedModel model =
        blamed_on("training.model.path", loaded, [&] { return open_model(training.model.path); });
    const ModelNotes notes = blamed_on("training.model.path", loaded, [&] {
      (void)model.archive.structure({});
      return parse_notes(model.archive.accel_json());
    });
    blamed_on("mixed_precision", loaded, [&] { require_dtype(notes, loaded.config.fsdp.precision); });
    blamed_on("training.data.train.packing", loaded, [&] { require_packing(training.data.train, notes); });
    if (training.data.eval)
      blamed_on("training.data.eval.packing", loaded, [&] { require_packing(*training.data.eval, notes); });
    blamed_on("training.optimizer.groups", loaded, [&] {
      OptimizerPlan(training.optimizer).require_used(model.archive.structure({}).parameters);
    });
    if (loaded.config.has_float8()) {
      blamed_on("training.float8.filter", loaded,
                [&] { (void)plan_linears(model.archive.structure({}), training.float8); });
    }
    const ModelPlan plan = plan_model(model.archive, loaded.config);
    found.warnings_of_ranks = plan.warnings;
    if (plan.tensors) found.tensor_summary = plan.tensors->summary();
    found.groups = parameter_groups(plan.structure, plan.optimizer);
    if (std::string text = muon_warning(plan.structure, plan.optimizer); !text.empty())
      found.warnings.push_back(std::move(text));
    check_compiled(model.archive, loaded, found);
    blamed_on("training.model.inputs", loaded, [&] {
      require_inputs(training.model, notes.inputs);
      if (model.archive.forward_arguments().empty()) {
        throw Error(ErrorKind::kUsage, "the model has no method 'forward'")
            .hint("export a module whose forward takes a batch and returns the loss, or logits");
      }
      require_argument_count(training.model, model.archive.forward_arguments());
    });
    if (options.begins) check_weights(model, plan.structure, loaded);
    if (state) {
      blamed_on("training.output_dir", loaded,
                [&] { check_resumed(options.checkpoint, *state, plan.structure); });
    }
    const TableSizes sizes = table_sizes(plan.structure);
    facts = {sizes.positions,
             notes.max_positions,
             sizes.least_tokens,
             std::move(model.signature),
             labels_for(training.model, notes),
             std::nullopt};
  }
  if (state) facts.place = state->data;
  std::optional<TrainingData> data = check_data(loaded, facts);
  if (data) {
    data->tensor_summary = std::move(found.tensor_summary);
    data->groups = std::move(found.groups);
    data->warnings_of_ranks = std::move(found.warnings_of_ranks);
    data->warnings.insert(data->warnings.end(), found.warnings.begin(), found.warnings.end());
  }
  return data;
}

void require_model_of(const config::LoadedConfig& loaded, const std::filesystem::path& checkpoint) {
  const auto state = state_of(checkpoint);
  const auto structure = [&]() -> std::optional<ModelStructure> {
    try {
      return plan_model(open_model(loaded.config.training->model.path).archive, loaded.config).structure;
    } catch (const Error& error) {
      if (is_by_signal(error.kind())) throw;
      return std::nullopt;
    }
  }();
  if (!state || !structure) return;
  blamed_on("training.output_dir", loaded, [&] { check_resumed(checkpoint, *state, *structure); });
}

}  // namespace accel
