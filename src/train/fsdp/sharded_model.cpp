#include "train/fsdp/sharded_model.hpp"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "plan/layout/buffer_plan.hpp"
#include "plan/linears/float8_gather.hpp"
#include "plan/model_plan.hpp"
#include "plan/units/ignored_modules.hpp"
#include "structure/model_notes.hpp"
#include "train/graph/analysis/cross_unit_reads.hpp"
#include "train/graph/analysis/unsupported.hpp"
#include "train/graph/passes/autocast_block.hpp"
#include "train/graph/passes/patch_traced.hpp"
#include "train/graph/passes/rewrite.hpp"
#include "train/graph/passes/visible_data.hpp"
#include "train/graph/tensors.hpp"

namespace accel::train {

namespace {

at::ScalarType dtype_named(const std::string& name) { return c10::getStringToDtypeMap().at(name); }

std::optional<at::ScalarType> dtype_if_named(const std::string& name) {
  return name.empty() ? std::nullopt : std::optional(dtype_named(name));
}

BufferDtypes dtypes_of(const BufferPlan& plan) {
  return {dtype_named(plan.dtype), dtype_named(plan.compute_dtype), dtype_named(plan.reduce_dtype),
          plan.gathers_float8()};
}

constexpr std::size_t kShown = 5;

void warn_of_widened(const ModelStructure& model, const config::PrecisionConfig& precision) {
  const std::vector<std::string> names = widened_parameters(model, precision);
  if (names.empty()) return;
  const std::span shown = std::span(names).first(std::min(names.size(), kShown));
  log::warn(fmt::format("{} trainable parameters of 16 bits are trained and saved in float32: {}{}",
                        names.size(), fmt::join(shown, ", "), names.size() > kShown ? ", ..." : ""));
}

/// What may be wrong if operands have several dtypes. In mixed precision ignored modules get 16-bit inputs
/// from units, but their weights are not cast.
std::string dtype_hint_of(const ModelStructure& model, const config::PrecisionConfig& precision) {
  if (precision.io_dtype.empty()) return "";
  const std::vector<std::string> modules = ignored_beside(model, precision.io_dtype);
  if (modules.empty()) {
    return fmt::format(
        "units compute in {}, and a graph that tracing has fixed to another dtype does not; export the model "
        "with --dtype {}, or set mixed_precision: no",
        precision.io_dtype, precision.io_dtype);
  }
  const std::span shown = std::span(modules).first(std::min(modules.size(), kShown));
  return fmt::format(
      "inputs are {}, but the weights of ignored modules are not cast: {}{}; cast the input in such a "
      "module, or do not ignore it",
      precision.io_dtype, fmt::join(shown, ", "), modules.size() > kShown ? ", ..." : "");
}

/// A record of torch.export does not tell what a module's forward returned from what was read elsewhere, such
/// as an attribute that it sets. Both are results of an imported method, and results are cast.
void warn_of_several_results(const torch::jit::Module& root, const std::unordered_set<std::string>& units,
                             const config::PrecisionConfig& precision) {
  if (precision.io_dtype.empty()) return;
  std::vector<std::string> modules;
  for (const auto& module : root.named_modules()) {
    if (module.name.empty() || !units.contains(module.name)) continue;
    const std::vector<torch::jit::Method> methods = module.value.get_methods();
    const bool gives_several = std::any_of(methods.begin(), methods.end(), [](const torch::jit::Method& m) {
      const auto& results = m.function().getSchema().returns();
      return !results.empty() && results.front().type()->kind() == c10::TypeKind::TupleType;
    });
    if (gives_several) modules.push_back(module.name);
  }
  if (modules.empty()) return;
  const std::span shown = std::span(modules).first(std::min(modules.size(), kShown));
  log::warn(
      fmt::format("{}{}: give several values, all of which are cast to {}; torch casts only what forward "
                  "returns, and not what the model reads from an attribute",
                  fmt::join(shown, ", "), modules.size() > kShown ? ", ..." : "", precision.io_dtype));
}

std::shared_ptr<StorageDevice> storage_or(const std::shared_ptr<StorageDevice>& given, bool on_host,
                                          at::Device device) {
  if (given != nullptr) return given;
  return on_host ? StorageDevice::on_host(device) : StorageDevice::beside(device);
}

/// Gives memory of its own to each element of a buffer that was expanded. Nothing can be written into it
/// otherwise.
void separate_elements(const torch::jit::Module& module) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& buffer : module.buffers(/*recurse=*/true)) {
    if (at::has_internal_overlap(buffer) == at::MemOverlap::Yes)
      buffer.set_(buffer.clone(at::MemoryFormat::Contiguous));
  }
}

}  // namespace

ShardedModel::ShardedModel(ModelFile file, const ShardingOptions& options, at::Device device, Group& world)
    : ShardedModel(std::move(file), options, device, MeshGroups::split(world, options.fsdp)) {}

ShardedModel::ShardedModel(ModelFile file, const ShardingOptions& options, at::Device device,
                           MeshGroups groups)
    : module_(file.module()),
      device_(device),
      groups_(std::move(groups)),
      optimizer_plan_(options.optimizer),
      step_(groups_, options.fsdp.prefetch_depth) {
  ModelNotes notes = parse_notes(file.accel_json());
  notes.is_exported ? patch_exported(module_, device_) : patch_traced(module_, device_);
  ShardingOptions resolved = options;
  const ModelStructure unmarked = file.structure({});
  NotedConfig noted = with_notes(std::move(resolved.fsdp), notes, unmarked);
  resolved.fsdp = std::move(noted.fsdp);
  if (groups_.world().rank() == 0) {
    for (const std::string& warning : noted.warnings) log::warn(warning);
  }
  const std::string& ignored = resolved.fsdp.ignored_modules;
  const ModelStructure plain = with_ignored(unmarked, ignored, resolved.fsdp.ignored_origin);
  std::optional<TensorPlan> tensors;
  if (const int parts = groups_.mesh().tp(); parts > 1) {
    tensors = plan_tensors(plain, options.tp_plan, notes, parts);
    require_own_reads(module_, *tensors);
  }
  non_persistent_ = std::move(notes.non_persistent);
  weight_conversions_ = std::move(notes.weight_conversions);
  adapter_config_ = std::move(notes.adapter_config);
  resolved.weights.names.conversions = weight_conversions_;

  const std::unordered_set<std::string> units = unit_modules(plain, resolved.fsdp);
  const auto autocast_classes = refuse_unsupported(module_, units);
  obey_autocast(autocast_classes, notes.is_exported ? std::optional(device_) : std::nullopt);
  if (groups_.mesh().size(Axis::kSp) > 1) {
    sequence_ = std::make_unique<SequenceParallel>(module_, resolved.inputs, groups_.along(Axis::kSp));
  }
  const bool gathers_float8 = resolved.float8 && resolved.float8->gathers_float8;
  std::optional<ModelStructure> apart;
  if (gathers_float8) {
    const auto modules = float8_modules(plan_linears(unmarked, *resolved.float8));
    apart = file.structure(cross_unit_reads(module_, modules));  // The fused forward reads the head's weight.
  }
  if (resolved.head_output) head_ = add_fused_forward(module_, *resolved.head_output);
  if (resolved.float8) use_float8(*resolved.float8, unmarked);
  if (tensors) use_tensor_plan(*tensors);
  if (resolved.compile) {
    compiled_ = compiled_bodies(file, module_, *resolved.compile, resolved.fsdp.precision, groups_.world());
  }
  structure_ =
      with_frozen(with_ignored(file.structure(cross_unit_reads(module_, units)), ignored), optimizer_plan_);
  if (tensors) structure_ = with_tensor_parts(std::move(structure_), *tensors, groups_.place().tp);
  if (apart) structure_ = with_float8_gather(std::move(structure_), float8_->plan(), *apart);
  dtype_hint_ = dtype_hint_of(structure_, resolved.fsdp.precision);
  const std::vector<ShardTarget> targets = build_units(file, resolved);
  // One shard may be a copy, too: where parameters compute in 16 bits, or are offloaded.
  const bool has_copies = std::any_of(units_.begin(), units_.end(), [](const auto& unit) {
    return std::any_of(unit->buffers().begin(), unit->buffers().end(),
                       [](const auto& buffer) { return !buffer->is_alias(); });
  });
  if (has_copies) make_data_visible(module_);
  if (options.on_wrapped) options.on_wrapped();
  load(file, resolved.weights, targets);
  if (const auto dtype = dtype_if_named(resolved.fsdp.precision.buffer_dtype))
    cast_buffers_ = cast_buffers(module_, structure_, *dtype);
  if (options.broadcast_buffers) buffer_broadcast_.emplace(module_, groups_.mean());
  if (groups_.world().rank() == 0) {
    warn_of_widened(structure_, resolved.fsdp.precision);
    if (notes.is_exported) warn_of_several_results(module_, units, resolved.fsdp.precision);
  }
}

ShardedModel::~ShardedModel() = default;

void ShardedModel::use_float8(const config::Float8Config& config, const ModelStructure& model) {
  float8_.emplace(module_, plan_linears(model, config), config);
  const LinearPlan& plan = float8_->plan();
  for (const PlannedLinear& linear : plan.linears) {
    if (head_.is_found() && linear.is_float8() && linear.module == head_.module)
      head_.missing = fmt::format("'{}' computes in float8", text_of_module(linear.module));
  }
  if (groups_.world().rank() != 0) return;
  const std::string warning = plan.warning();
  warning.empty() ? log::info(plan.summary()) : log::warn(warning);
  if (const std::string names = float8_->warning_of_names(); !names.empty()) log::warn(names);
}

void ShardedModel::use_tensor_plan(const TensorPlan& plan) {
  tensor_linears_.emplace(module_, plan, groups_.tp());
  for (const TensorModule& module : plan.modules) {
    if (!head_.is_found() || module.module != head_.module) continue;
    cuts_head_ = module.style == TensorStyle::kColwiseGather && head_.has_own_weight;
    if (!cuts_head_)
      head_.missing = fmt::format("tensor parallelism cuts '{}'", text_of_module(module.module));
  }
  if (groups_.world().rank() == 0) log::info(plan.summary());
}

std::vector<ShardTarget> ShardedModel::build_units(const ModelFile& file, const ShardingOptions& options) {
  pool_ = BufferPool::make(device_, options.poison);
  storage_ = storage_or(options.storage, options.fsdp.offload_params, device_);
  // Replicated parameters are not offloaded, as in torch.
  const auto beside = StorageDevice::beside(device_);
  const auto activation_storage =
      storage_or(options.activation_storage, options.fsdp.activation_offload, device_);
  std::unordered_map<std::string, torch::jit::Module> modules;
  for (const auto& module : module_.named_modules()) modules.emplace(module.name, module.value);

  const bool hooks_reductions = groups_.mesh().shards() == 1 && groups_.mesh().replicas() > 1;
  hook_seeds_ = std::make_shared<NumpyRandom>(options.ddp.power_sgd.random_seed);
  const bool has_own_values =
      options.weights.path.empty() && !options.weights.init_std && options.weights.resumed.empty();
  std::vector<ShardTarget> targets;
  std::unordered_map<const at::TensorImpl*, at::Tensor> replacement;
  std::unordered_map<const at::TensorImpl*, std::string> owners;  // Maps a tensor to the module of its unit.
  std::unordered_map<const c10::ivalue::Object*, UnitHooks*> hooks;
  const config::PrecisionConfig& precision = options.fsdp.precision;
  const std::optional<at::ScalarType> io_dtype = dtype_if_named(precision.io_dtype);
  if (const auto dtype = dtype_if_named(precision.autocast_dtype)) autocast_ = {device_.type(), true, *dtype};
  std::vector<UnitPlan> plans = plan_units(structure_, options.fsdp);
  std::set<std::string> layers;
  for (const auto& [layer, body] : compiled_) layers.insert(layer);
  require_no_unit_inside(layers, plans);
  for (UnitPlan& plan : plans) {
    std::vector<std::unique_ptr<FlatBuffer>> buffers;
    for (BufferPlan& planned :
         plan_buffers(structure_, plan, optimizer_plan_, groups_.mesh(), options.fsdp.precision)) {
      auto buffer =
          std::make_unique<FlatBuffer>(std::move(planned.layout), dtypes_of(planned), planned.trainable,
                                       pool_, planned.replicated ? beside : storage_);
      if (hooks_reductions && planned.trainable)
        buffer->set_comm_hook(CommHook::make(options.ddp, buffer->layout(), hook_seeds_));
      ShardTarget target{*buffer, {}, planned.replicated ? 0 : groups_.place().shard};
      for (std::size_t i = 0; i < planned.parameters.size(); ++i) {
        const at::Tensor& parameter = file.parameters()[planned.parameters[i]];
        if (buffer->float8_weights() != nullptr)
          float8_->use_gathered(buffer->parameters()[i], buffer->float8_weights()->gathered()[i]);
        replacement[parameter.unsafeGetTensorImpl()] = buffer->parameters()[i];
        if (!planned.replicated) owners[parameter.unsafeGetTensorImpl()] = plan.module;
        // Other sources than the model file give values in the dtype of the shard.
        target.sources.push_back(
            {planned.parameters[i], has_own_values ? parameter.scalar_type() : buffer->dtype()});
      }
      targets.push_back(std::move(target));
      if (planned.trainable) trainable_buffers_.push_back(buffer.get());
      if (buffer->float8_weights() != nullptr) float8_buffers_.push_back(buffer.get());
      buffers.push_back(std::move(buffer));
    }
    const torch::jit::Module& module = modules.at(plan.module);
    rewrite_methods(module);
    const bool has_head = head_.is_found() && is_at_or_inside(head_.module, plan.module);
    const bool recomputes_head =
        has_head && !plan.is_root() && plan.checkpoints && options.fsdp.activation_checkpointing;
    if (recomputes_head)
      head_.missing = fmt::format("'{}' is recomputed in backward", text_of_module(plan.module));
    const Unit::Options unit{
        .reshard_after_forward = options.fsdp.reshard_after_forward,
        .forward_prefetch = options.fsdp.forward_prefetch,
        .backward_prefetch = options.fsdp.backward_prefetch,
        .argument_dtype = plan.is_root() && !io_dtype ? dtype_if_named(precision.buffer_dtype) : io_dtype,
        .result_dtype = io_dtype,
        .returns_loss = has_head,
        .recompute = options.fsdp.activation_checkpointing,
        .activation_storage = activation_storage->is_offloaded() ? activation_storage : nullptr,
        // Recomputed units may read the root's parameters, each in a backward of its own.
        .reduce_late = options.fsdp.activation_checkpointing && plan.is_root(),
        .device = device_,
        .without_autocast = autocast_.has_value() && WithoutAutocast::wants(class_name_of(module)),
        .compiled = compiled_.contains(plan.module) ? compiled_.at(plan.module) : UnitBody()};
    units_.push_back(
        std::make_unique<Unit>(std::move(plan), module._ivalue(), std::move(buffers), unit, groups_, step_));
    hooks[module._ivalue().get()] = units_.back().get();
  }

  if (autocast_) switch_autocast_off(modules, hooks);
  add_compiled_modules(modules, hooks);
  put_in_place(owners, replacement);
  registration_.emplace(std::move(hooks));
  return targets;
}

void ShardedModel::put_in_place(const std::unordered_map<const at::TensorImpl*, std::string>& owners,
                                std::unordered_map<const at::TensorImpl*, at::Tensor>& replacement) {
  const auto is_other = [&](const at::Tensor& tensor) {
    return tensor.device() != device_ || replacement.contains(tensor.unsafeGetTensorImpl());
  };
  const auto other = [&](const at::Tensor& tensor) {
    at::Tensor& there = replacement[tensor.unsafeGetTensorImpl()];
    if (!there.defined()) there = tensor.to(device_);
    return there;
  };
  for (const auto& module : module_.named_modules()) {
    const auto object = module.value._ivalue();
    for (std::size_t slot = 0; slot < module.value.type()->numAttributes(); ++slot) {
      const c10::IValue value = object->getSlot(slot);
      bool changes = false;
      for_each_tensor(value, [&](const at::Tensor& tensor) {
        changes |= is_other(tensor);
        const auto owner = owners.find(tensor.unsafeGetTensorImpl());
        if (value.isTensor() || owner == owners.end() || is_at_or_inside(module.name, owner->second)) return;
        throw Error(
            ErrorKind::kUsage,
            fmt::format("attribute '{}' of module '{}' holds a parameter of unit '{}', which is gathered "
                        "only while the unit runs",
                        module.value.type()->getAttributeName(slot), text_of_module(module.name),
                        owner->second))
            .hint(
                "wrap a module that contains both, or export a model without lists of parameters of "
                "other modules");
      });
      if (changes) object->setSlot(slot, map_tensors(value, other));
    }
  }
}

void ShardedModel::switch_autocast_off(const std::unordered_map<std::string, torch::jit::Module>& modules,
                                       std::unordered_map<const c10::ivalue::Object*, UnitHooks*>& hooks) {
  for (const auto& [name, module] : modules) {
    const c10::ivalue::Object* object = module._ivalue().get();
    if (!WithoutAutocast::wants(class_name_of(module)) || hooks.contains(object)) continue;
    rewrite_methods(module);
    without_autocast_.push_back(std::make_unique<WithoutAutocast>(name, device_.type()));
    hooks[object] = without_autocast_.back().get();
  }
}

void ShardedModel::add_compiled_modules(const std::unordered_map<std::string, torch::jit::Module>& modules,
                                        std::unordered_map<const c10::ivalue::Object*, UnitHooks*>& hooks) {
  for (const auto& [name, body] : compiled_) {
    const torch::jit::Module& module = modules.at(name);
    const c10::ivalue::Object* object = module._ivalue().get();
    if (hooks.contains(object)) continue;
    rewrite_methods(module);
    compiled_modules_.push_back(std::make_unique<CompiledModule>(name, body, step_));
    hooks[object] = compiled_modules_.back().get();
  }
}

void ShardedModel::load(const ModelFile& file, const WeightOptions& options,
                        const std::vector<ShardTarget>& targets) {
  // Random values need no file: every rank draws the values of its shard.
  const bool reads = !options.init_std || !options.resumed.empty();
  const bool scatters = options.from_rank_0 && reads && groups_.world().size() > 1;
  const bool is_first = groups_.world().rank() == 0;
  ModelStructure wanted = structure_;
  for (const ShardTarget& target : targets) {
    for (const ShardSource& source : target.sources)
      wanted.parameters[source.parameter].dtype = c10::getDtypeNames(source.dtype).first;
  }
  separate_elements(module_);
  std::unique_ptr<WeightSource> weights;
  if (is_first || !scatters) {
    weights = open_weights(file, wanted, options);
    load_buffers(*weights);
  }
  if (scatters) {
    for (const auto& [name, buffer] : persistent_buffers()) groups_.world().broadcast(buffer);
  }
  for (const ShardTarget& target : targets) {
    if (scatters) {
      scatter_shards(weights.get(), target, groups_);
    } else {
      load_shard(*weights, target);
    }
  }
  if (!is_first) return;
  for (const std::string& warning : weights->warnings()) log::warn(warning);
}

void ShardedModel::load_buffers(WeightSource& weights) const {
  const at::NoGradGuard no_grad;
  for (const auto& [name, buffer] : persistent_buffers()) {
    if (buffer.is_meta()) {
      throw Error(ErrorKind::kUsage, fmt::format("buffer '{}' is on the meta device and has no values", name))
          .hint("export the model with its buffers on the CPU; only parameters may be on the meta device");
    }
    const auto dtype = ckpt::dtype_of_torch_name(c10::getDtypeNames(buffer.scalar_type()).first);
    if (!dtype) continue;
    at::Tensor values = at::empty(buffer.sizes(), buffer.options().device(at::kCPU));
    const bool found =
        weights.read_buffer(name, buffer.sizes().vec(), *dtype,
                            {static_cast<std::byte*>(values.mutable_data_ptr()), values.nbytes()});
    if (found) at::Tensor(buffer).copy_(values);
  }
}

c10::IValue ShardedModel::run(std::vector<c10::IValue> inputs, const HeadFunction& head) {
  const bool is_fused = head && head_.is_found();
  const HeadScope scope(head);
  torch::jit::Method forward = module_.get_method(is_fused ? kFusedForward : "forward");
  try {
    if (!autocast_) return forward(std::move(inputs));
    const AutocastScope autocast(*autocast_);
    return with_float32(forward(std::move(inputs)));
  } catch (const std::exception&) {
    // The interpreter's exception has neither the kind nor the hint of our Error.
    if (step_.failure) rethrow_failure();
    throw;
  }
}

void ShardedModel::rethrow_failure() {
  try {
    std::rethrow_exception(std::exchange(step_.failure, nullptr));
  } catch (Error& error) {
    const auto says = [&](const char* text) { return error.message().find(text) != std::string::npos; };
    const bool is_of_sizes = says("is invalid for input of size") || says("must match the") ||
                             says("expanded size") || says("cannot be multiplied");
    if (tensor_linears_ && is_of_sizes && error.advice().empty()) {
      throw std::move(error).hint(
          "with tensor parallelism each rank has a part of the heads and of the width: a size that the "
          "model's code has as a constant must be -1 there, as accel-export writes it");
    }
    const bool is_of_dtypes = says("same dtype");
    if (dtype_hint_.empty() || !is_of_dtypes || !error.advice().empty()) throw;
    throw std::move(error).hint(dtype_hint_);
  }
}

c10::IValue ShardedModel::forward(std::vector<c10::IValue> inputs, const HeadFunction& head) {
  step_.expects_backward = at::GradMode::is_enabled();
  update_float8_scales(float8_buffers_, groups_.shard());
  if (buffer_broadcast_) buffer_broadcast_->before_forward();
  c10::IValue result = run(sequence_ ? sequence_->enter(inputs) : std::move(inputs),
                           head && cuts_head_ ? tensor_linears_->with_logits(head) : head);
  if (buffer_broadcast_) buffer_broadcast_->after_forward(step_.expects_backward && step_.reduce);
  step_.prefetch.finish_recording();
  // No backward frees what was gathered ahead and did not run.
  if (!at::GradMode::is_enabled()) {
    step_.prefetch.drop_candidates();
    for (const auto& unit : units_) unit->reshard();
  }
  return result;
}

void ShardedModel::begin_micro_batch(bool reduce) {
  step_.reduce = reduce;
  for (const auto& unit : units_) unit->begin_micro_batch();
}

void ShardedModel::finish_backward() {
  step_.prefetch.drop_candidates();
  // The units follow the order of backward, as those did that have reduced already.
  for (auto unit = units_.rbegin(); unit != units_.rend(); ++unit) (*unit)->finish_backward();
  step_.reduces.finish();
  // The optimizer reads the gradients and writes the shards, whose copies may still be under way.
  if (step_.reduce) storage_->synchronize();
}

void ShardedModel::clear_gradients() {
  for (FlatBuffer* buffer : trainable_buffers_) buffer->clear_gradient();
}

void ShardedModel::reset_hook_state() {
  for (const FlatBuffer* buffer : trainable_buffers_) {
    if (buffer->comm_hook() != nullptr) buffer->comm_hook()->reset();
  }
}

void ShardedModel::set_training(bool training) { module_.train(training); }

NamedTensors ShardedModel::persistent_buffers() const {
  NamedTensors buffers;
  for (const auto& buffer : module_.named_buffers(/*recurse=*/true)) {
    if (std::find(non_persistent_.begin(), non_persistent_.end(), buffer.name) != non_persistent_.end())
      continue;
    const auto cast = cast_buffers_.find(buffer.name);
    buffers.emplace_back(buffer.name,
                         cast == cast_buffers_.end() ? buffer.value : buffer.value.to(cast->second));
  }
  return buffers;
}

void ShardedModel::set_persistent_buffers(const std::map<std::string, at::Tensor>& values) {
  const at::NoGradGuard no_grad;
  for (const auto& buffer : module_.named_buffers(/*recurse=*/true)) {
    const auto value = values.find(buffer.name);
    if (value != values.end()) at::Tensor(buffer.value).copy_(value->second);
  }
}

}  // namespace accel::train
