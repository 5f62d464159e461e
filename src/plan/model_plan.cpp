#include "plan/model_plan.hpp"

#include <utility>

#include "plan/autocast_copies.hpp"
#include "plan/ignored_modules.hpp"

namespace accel {

namespace {

/// The number of state tensors of a parameter's size.
int moments_of(const config::OptimizerConfig& optimizer) {
  if (optimizer.type == "sgd") return 0;
  if (optimizer.type == "adagrad") return 1;
  return 2;
}

}  // namespace

config::FsdpConfig with_notes(config::FsdpConfig config, const ModelNotes& notes) {
  if (!config.transformer_layer_cls_to_wrap.empty() || notes.layer_classes.empty()) return config;
  config.transformer_layer_cls_to_wrap = notes.layer_classes;
  config.wrap_origin = "the model file's accel.json, 'layer_classes'";
  return config;
}

ModelPlan plan_model(const ArchiveModel& model, const config::FsdpConfig& fsdp) {
  ModelPlan plan;
  plan.fsdp = with_notes(fsdp, parse_notes(model.accel_json()));
  const auto marked = [&](ModelStructure structure) {
    return with_ignored(std::move(structure), plan.fsdp.ignored_modules, plan.fsdp.ignored_origin);
  };
  plan.structure = marked(model.structure(unit_modules(marked(model.structure({})), plan.fsdp)));
  plan.units = plan_units(plan.structure, plan.fsdp);
  return plan;
}

Footprint footprint_of(const ArchiveModel& model, const ModelPlan& plan, const config::Config& config) {
  FootprintOptions options;
  options.world_size = config.launch.num_processes;
  options.replicas = config.fsdp.replicate_size;
  options.reshard_size = config.fsdp.reshard_size;
  options.reshard_after_forward = config.fsdp.reshard_after_forward;
  options.forward_prefetch = config.fsdp.forward_prefetch;
  options.backward_prefetch = config.fsdp.backward_prefetch;
  options.activation_checkpointing = config.fsdp.activation_checkpointing;
  options.stored_on_host = config.fsdp.offload_params && !config.launch.use_cpu;
  options.keeps_blocks = config.launch.use_cpu;
  options.optimizer_moments = moments_of(config.training->optimizer);
  options.micro_batches = config.training->gradient_accumulation_steps;
  options.no_decay = config.training->optimizer.no_decay;
  options.precision = config.fsdp.precision;
  if (!options.precision.autocast_dtype.empty())
    options.names_without_cast = names_without_cast(model.structure(lookup_modules(plan.structure)));
  options.ddp = config.training->ddp;
  options.replicated_bytes = model.replicated_bytes();
  options.persistent_bytes = model.persistent_bytes(parse_notes(model.accel_json()).non_persistent);
  return footprint_of(plan.structure, plan.units, options);
}

}  // namespace accel
