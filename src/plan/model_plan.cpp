#include "plan/model_plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "core/config/mesh.hpp"
#include "plan/layout/optimizer_plan.hpp"
#include "plan/linears/float8_gather.hpp"
#include "plan/memory/autocast_copies.hpp"
#include "plan/units/ignored_modules.hpp"
#include "structure/compiled_layers.hpp"

namespace accel {
namespace {

constexpr const char* kNotedClasses = "the notes of the model file (accel.json, 'layer_classes')";

/// The layer classes of the notes that the model has.
std::vector<std::string> classes_there(const ModelNotes& notes, const ModelStructure& model,
                                       std::vector<std::string>& warnings) {
  std::set<std::string> all;
  for (const ModuleInfo& module : model.modules) all.insert(module.class_name);
  std::vector<std::string> there;
  std::vector<std::string> absent;
  for (const std::string& name : notes.layer_classes) (all.contains(name) ? there : absent).push_back(name);
  if (there.empty()) {
    throw Error(ErrorKind::kUsage, fmt::format("{} name {}, and the model has no module of such a class",
                                               kNotedClasses, fmt::join(absent, ", ")))
        .hint(fmt::format("set fsdp_transformer_layer_cls_to_wrap; the model's classes are {}",
                          fmt::join(all, ", ")));
  }
  if (!absent.empty()) {
    warnings.push_back(fmt::format("{} name {}, of which the model has no module; the units are {}",
                                   kNotedClasses, fmt::join(absent, ", "), fmt::join(there, ", ")));
  }
  return there;
}

/// The paths of the layers that run compiled code.
std::set<std::string> compiled_layers_of(const ArchiveModel& model, const config::Config& config) {
  std::set<std::string> paths;
  if (!config.training || config.training->compile.backend != "INDUCTOR" || model.compiled_json().empty())
    return paths;
  for (const auto& [path, layer] : parse_compiled_layers(model.compiled_json()).layers) paths.insert(path);
  return paths;
}

}  // namespace

// A graph of a 16-bit model casts its values itself, and its operators refuse weights of another dtype.
void require_dtype(const ModelNotes& notes, const config::PrecisionConfig& precision) {
  const std::string run = precision.param_dtype.empty() ? "float32" : precision.param_dtype;
  if (notes.dtype.empty() || notes.dtype == "float32" || notes.dtype == run) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("the model computes in {}, as the notes of its file say (accel.json, 'dtype'), and "
                          "the run computes with parameters in {}",
                          notes.dtype, run))
      .hint(fmt::format("set mixed_precision: {} with distributed_type: FSDP, or export the model with "
                        "--dtype {}",
                        notes.dtype == "bfloat16" ? "bf16" : "fp16", run));
}

NotedConfig with_notes(config::FsdpConfig config, const ModelNotes& notes, const ModelStructure& model) {
  require_dtype(notes, config.precision);
  NotedConfig result{std::move(config), {}};
  const bool wants_classes = result.fsdp.auto_wrap_policy == config::WrapPolicy::kTransformer &&
                             result.fsdp.transformer_layer_cls_to_wrap.empty();
  if (!wants_classes || notes.layer_classes.empty()) return result;
  result.fsdp.transformer_layer_cls_to_wrap = classes_there(notes, model, result.warnings);
  result.fsdp.wrap_origin = kNotedClasses;
  return result;
}

ModelPlan plan_model(const ArchiveModel& model, const config::Config& config) {
  ModelPlan plan;
  if (config.training) plan.optimizer = OptimizerPlan(config.training->optimizer);
  const ModelStructure plain = model.structure({});
  const ModelNotes notes = parse_notes(model.accel_json());
  NotedConfig noted = with_notes(config.fsdp, notes, plain);
  plan.fsdp = std::move(noted.fsdp);
  plan.warnings = std::move(noted.warnings);
  if (config.training && config.has_float8()) {
    plan.linears = plan_linears(plain, config.training->float8);
    if (std::string warning = plan.linears->warning(); !warning.empty())
      plan.warnings.push_back(std::move(warning));
  }
  const auto marked = [&](ModelStructure structure) {
    return with_frozen(
        with_ignored(std::move(structure), plan.fsdp.ignored_modules, plan.fsdp.ignored_origin),
        plan.optimizer);
  };
  plan.structure = marked(model.structure(unit_modules(marked(plain), plan.fsdp)));
  if (config.gathers_float8()) {
    plan.structure = with_float8_gather(std::move(plan.structure), *plan.linears,
                                        model.structure(float8_modules(*plan.linears)));
  }
  plan.units = plan_units(plan.structure, plan.fsdp);
  if (config.training && config.fsdp.tp_size > 1) {
    plan.tensors =
        plan_tensors(plan.structure, config.training->parallel.tp_plan, notes, config.fsdp.tp_size);
    plan.structure = with_tensor_parts(std::move(plan.structure), *plan.tensors, 0);
  }
  plan.compiled_layers = compiled_layers_of(model, config);
  require_no_unit_inside(plan.compiled_layers, plan.units);
  return plan;
}

Footprint footprint_of(const ArchiveModel& model, const ModelPlan& plan, const config::Config& config) {
  FootprintOptions options;
  options.mesh = config::mesh_of(config);
  options.reshard_size = config.fsdp.reshard_size;
  options.reshard_after_forward = config.fsdp.reshard_after_forward;
  options.forward_prefetch = config.fsdp.forward_prefetch;
  options.backward_prefetch = config.fsdp.backward_prefetch;
  options.prefetch_depth = config.fsdp.prefetch_depth;
  options.activation_checkpointing = config.fsdp.activation_checkpointing;
  options.stored_on_host = config.fsdp.offload_params && !config.launch.use_cpu;
  options.keeps_blocks = config.launch.use_cpu;
  options.optimizer = plan.optimizer;
  options.micro_batches = config.training->gradient_accumulation_steps;
  options.precision = config.fsdp.precision;
  if (!options.precision.autocast_dtype.empty())
    options.names_without_cast = names_without_cast(model.structure(lookup_modules(plan.structure)));
  // A float8 product casts its weight to one byte, and saves the weight itself for backward.
  for (const PlannedLinear& linear : plan.linears.value_or(LinearPlan()).linears) {
    if (linear.is_float8()) options.names_without_cast.insert(linear.module + ".weight");
  }
  options.ddp = config.training->ddp;
  options.replicated_bytes = model.replicated_bytes();
  options.persistent_bytes = model.persistent_bytes(parse_notes(model.accel_json()).non_persistent);
  options.compiled_layers = plan.compiled_layers;
  options.adapter_only = config.training->checkpoint.adapter_only;
  return footprint_of(plan.structure, plan.units, options);
}

}  // namespace accel
