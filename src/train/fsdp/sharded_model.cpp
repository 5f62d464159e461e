#include "train/fsdp/sharded_model.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "base/error.hpp"
#include "base/log.hpp"
#include "train/fsdp/load_shards.hpp"
#include "train/fsdp/wrap_policy.hpp"
#include "train/graph/foreign_reads.hpp"
#include "train/graph/mend_traced.hpp"
#include "train/graph/rewrite.hpp"

namespace accel::train {
namespace {

/// What our exporters say about a model in its extra file `accel.json`; both lists may be missing.
struct ModelNotes {
  std::vector<std::string> layer_classes;
  std::vector<std::string> non_persistent;
};

ModelNotes parse_notes(const std::string& text) {
  if (text.empty()) return {};
  try {
    const auto document = nlohmann::json::parse(text);
    return {document.value("layer_classes", std::vector<std::string>{}),
            document.value("non_persistent", std::vector<std::string>{})};
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorKind::kUsage, fmt::format("the model file's accel.json is wrong: {}", error.what()));
  }
}

bool decays(const std::vector<std::string>& fqns, const std::vector<std::string>& no_decay) {
  return std::none_of(no_decay.begin(), no_decay.end(), [&](const std::string& part) {
    return std::any_of(fqns.begin(), fqns.end(),
                       [&](const std::string& fqn) { return fqn.find(part) != std::string::npos; });
  });
}

void check_trainable_dtype(const ParameterInfo& parameter, at::ScalarType dtype) {
  if (!parameter.requires_grad || dtype == at::kFloat) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("parameter '{}' requires grad and is {}; training in another dtype than "
                          "float32 is not there yet",
                          parameter.fqns.front(), parameter.dtype))
      .hint("export the model in float32");
}

}  // namespace

ShardedModel::ShardedModel(ModelFile file, const ShardingOptions& options, at::Device device, Group& group)
    : module_(file.module()), device_(device) {
  mend_traced(module_, device_);
  ModelNotes notes = parse_notes(file.accel_json());
  ShardingOptions resolved = options;
  if (resolved.fsdp.transformer_layer_cls_to_wrap.empty()) {
    resolved.fsdp.transformer_layer_cls_to_wrap = std::move(notes.layer_classes);
  }
  non_persistent_ = std::move(notes.non_persistent);

  const ModelStructure plain = file.structure({});
  const auto wrapped = wrapped_modules(plain, resolved.fsdp);
  std::unordered_set<std::string> unit_classes;
  for (const ModuleInfo& module : plain.modules) {
    if (std::find(wrapped.begin(), wrapped.end(), module.name) != wrapped.end())
      unit_classes.insert(module.class_name);
  }
  structure_ = file.structure(foreign_reads(module_, unit_classes));
  const auto weights = open_weights(file, structure_, options.weights);
  load_buffers(*weights);
  build_units(file, resolved, *weights, group);
  if (group.rank() == 0) {
    for (const std::string& warning : weights->warnings()) log::warn(warning);
  }
}

ShardedModel::~ShardedModel() = default;

void ShardedModel::build_units(const ModelFile& file, const ShardingOptions& options, WeightSource& weights,
                               Group& group) {
  const auto pool = BufferPool::make(device_);
  std::unordered_map<std::string, torch::jit::Module> modules;
  for (const auto& module : module_.named_modules()) modules.emplace(module.name, module.value);

  std::unordered_map<const at::TensorImpl*, at::Tensor> replacement;
  std::unordered_map<const c10::ivalue::Object*, UnitHooks*> hooks;
  for (UnitPlan& plan : plan_units(structure_, options.fsdp)) {
    // One buffer a dtype and requires_grad, in the order in which they occur.
    std::map<std::pair<at::ScalarType, bool>, std::vector<std::size_t>> classes;
    for (const std::size_t index : plan.parameters) {
      const at::Tensor& tensor = file.parameters()[index];
      check_trainable_dtype(structure_.parameters[index], tensor.scalar_type());
      classes[{tensor.scalar_type(), tensor.requires_grad()}].push_back(index);
    }
    std::vector<std::unique_ptr<FlatBuffer>> buffers;
    for (const auto& [kind, indices] : classes) {
      const auto& [dtype, trainable] = kind;
      std::vector<ParameterSpec> specs;
      std::unordered_map<std::string, std::size_t> index_of;
      for (const std::size_t index : indices) {
        const ParameterInfo& parameter = structure_.parameters[index];
        specs.push_back({parameter.fqns, parameter.shape, decays(parameter.fqns, options.no_decay)});
        index_of[parameter.fqns.front()] = index;
      }
      auto buffer = std::make_unique<FlatBuffer>(
          make_flat_layout(std::move(specs), static_cast<std::int64_t>(c10::elementSize(dtype)),
                           group.size()),
          dtype, trainable, pool);
      std::vector<std::size_t> sources;
      for (std::size_t i = 0; i < buffer->parameters().size(); ++i) {
        const std::size_t index = index_of.at(buffer->layout().parameters[i].spec.fqns.front());
        sources.push_back(index);
        replacement[file.parameters()[index].unsafeGetTensorImpl()] = buffer->parameters()[i];
      }
      load_shard(weights, sources, *buffer, group.rank());
      if (trainable) trainable_buffers_.push_back(buffer.get());
      buffers.push_back(std::move(buffer));
    }
    const torch::jit::Module& module = modules.at(plan.module);
    rewrite_methods(module);
    const Unit::Options unit{
        .reshard_after_forward = options.fsdp.reshard_after_forward,
        .forward_prefetch = options.fsdp.forward_prefetch,
        .backward_prefetch = options.fsdp.backward_prefetch,
        .recompute = options.fsdp.activation_checkpointing,
        // Units that run again may read the root's parameters, each in a backward of its own.
        .reduce_late = options.fsdp.activation_checkpointing && plan.is_root()};
    units_.push_back(std::make_unique<Unit>(std::move(plan), std::move(buffers), unit, group, step_));
    hooks[module._ivalue().get()] = units_.back().get();
  }

  for_each_tensor_slot(module_, [&](c10::ivalue::Object& object, std::size_t slot, const at::Tensor& tensor) {
    const auto found = replacement.find(tensor.unsafeGetTensorImpl());
    if (found != replacement.end()) {
      object.setSlot(slot, found->second);
    } else if (tensor.device() != device_) {
      at::Tensor& moved = replacement[tensor.unsafeGetTensorImpl()];
      moved = tensor.to(device_);
      object.setSlot(slot, moved);
    }
  });
  registration_.emplace(std::move(hooks));
}

void ShardedModel::load_buffers(WeightSource& weights) const {
  const at::NoGradGuard no_grad;
  for (const auto& [name, buffer] : persistent_buffers()) {
    if (buffer.is_meta()) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("buffer '{}' is on the meta device, and has no values", name))
          .hint("export the model with its buffers on the CPU; parameters alone may be on the meta device");
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

c10::IValue ShardedModel::forward(std::vector<c10::IValue> inputs) {
  c10::IValue result = module_.forward(std::move(inputs));
  step_.recording = false;
  // What was gathered ahead and did not run: no backward will free it.
  if (!at::GradMode::is_enabled()) {
    step_.wanted = nullptr;
    for (const auto& unit : units_) unit->reshard();
  }
  return result;
}

void ShardedModel::begin_micro_step(bool reduce) {
  step_.reduce = reduce;
  for (const auto& unit : units_) unit->begin_micro_step();
}

void ShardedModel::finish_backward() {
  step_.wanted = nullptr;
  // Backward order, as the units that reduced on their own did.
  for (auto unit = units_.rbegin(); unit != units_.rend(); ++unit) (*unit)->finish_backward();
  for (FlatBuffer* buffer : step_.reducing) buffer->finish_reduce();
  step_.reducing.clear();
}

void ShardedModel::clear_gradients() {
  for (FlatBuffer* buffer : trainable_buffers_) buffer->clear_gradient();
}

void ShardedModel::set_training(bool training) { module_.train(training); }

std::vector<std::pair<std::string, at::Tensor>> ShardedModel::persistent_buffers() const {
  std::vector<std::pair<std::string, at::Tensor>> buffers;
  for (const auto& buffer : module_.named_buffers(/*recurse=*/true)) {
    if (std::find(non_persistent_.begin(), non_persistent_.end(), buffer.name) != non_persistent_.end())
      continue;
    buffers.emplace_back(buffer.name, buffer.value);
  }
  return buffers;
}

}  // namespace accel::train
