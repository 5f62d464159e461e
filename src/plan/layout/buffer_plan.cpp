#include "plan/layout/buffer_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "ckpt/tensor/dtype.hpp"

namespace accel {
namespace {

constexpr std::string_view kFull = "float32";

bool is_half(std::string_view dtype) { return dtype == "float16" || dtype == "bfloat16"; }
bool is_floating(std::string_view dtype) { return is_half(dtype) || dtype == kFull || dtype == "float64"; }
bool casts_shards(const config::PrecisionConfig& precision) { return !precision.param_dtype.empty(); }

/// The first names of the parameters that FSDP version 1 does not cast.
std::unordered_set<std::string> uncast_parameters(const ModelStructure& model, const UnitPlan& unit,
                                                  const config::PrecisionConfig& precision) {
  std::unordered_set<std::string> uncast;
  if (precision.buffer_dtype.empty()) return uncast;
  std::unordered_set<std::string> norms;
  for (const ModuleInfo& module : model.modules) {
    if (is_batch_norm(module)) norms.insert(module.name);
  }
  for (const std::size_t index : unit.parameters) {
    const std::string& fqn = model.parameters[index].fqns.front();
    const std::size_t dot = fqn.rfind('.');
    if (norms.contains(dot == std::string::npos ? "" : fqn.substr(0, dot))) uncast.insert(fqn);
  }
  return uncast;
}

bool is_widened(const ParameterInfo& parameter, const config::PrecisionConfig& precision) {
  return parameter.requires_grad && is_half(parameter.dtype) && casts_shards(precision);
}

void check_trainable_dtype(const ParameterInfo& parameter, const config::PrecisionConfig& precision) {
  if (!parameter.requires_grad || parameter.dtype == kFull || is_widened(parameter, precision)) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("parameter '{}' requires grad and is {}; parameters are trained in "
                          "float32 only",
                          parameter.fqns.front(), parameter.dtype))
      .hint(is_half(parameter.dtype)
                ? "export the model in float32, or train it with distributed_type: FSDP and mixed_precision: "
                  "bf16; autocast alone leaves parameters as they are"
                : "export the model in float32");
}

std::int64_t item_bytes_of(std::string_view name, const ParameterInfo& parameter) {
  const auto dtype = ckpt::dtype_of_torch_name(name);
  if (!dtype) {
    throw Error(ErrorKind::kUsage,
                fmt::format("parameter '{}' is {}, which cannot be sharded", parameter.fqns.front(), name));
  }
  return static_cast<std::int64_t>(ckpt::item_bytes(*dtype));
}

/// The buffer for the parameter, still empty.
BufferPlan buffer_for(const ParameterInfo& parameter, const config::PrecisionConfig& precision,
                      bool is_uncast) {
  BufferPlan buffer;
  buffer.trainable = parameter.requires_grad;
  buffer.replicated = parameter.replicated;
  buffer.tensor_cut = parameter.part.has_value();
  buffer.dtype = is_widened(parameter, precision) ? std::string(kFull) : parameter.dtype;
  const bool casts = casts_shards(precision) && is_floating(buffer.dtype) && !buffer.replicated && !is_uncast;
  buffer.compute_dtype = casts ? precision.param_dtype : buffer.dtype;
  buffer.reduce_dtype =
      casts && !precision.reduce_dtype.empty() ? precision.reduce_dtype : buffer.compute_dtype;
  buffer.gather_dtype = casts && parameter.gathers_float8 ? "float8_e4m3fn" : buffer.compute_dtype;
  buffer.item_bytes = item_bytes_of(buffer.dtype, parameter);
  buffer.compute_bytes = item_bytes_of(buffer.compute_dtype, parameter);
  buffer.gather_bytes = item_bytes_of(buffer.gather_dtype, parameter);
  buffer.reduce_bytes = item_bytes_of(buffer.reduce_dtype, parameter);
  return buffer;
}

}  // namespace

std::uint64_t BufferPlan::bytes() const { return checked_nbytes(layout.numel(), gather_bytes); }
std::uint64_t BufferPlan::gradient_bytes() const { return checked_nbytes(layout.numel(), reduce_bytes); }
std::uint64_t BufferPlan::shard_bytes() const { return checked_nbytes(layout.shard_numel, item_bytes); }

bool is_batch_norm(const ModuleInfo& module) {
  return module.class_name.starts_with("BatchNorm") || module.class_name == "SyncBatchNorm";
}

std::vector<BufferPlan> plan_buffers(const ModelStructure& model, const UnitPlan& unit,
                                     const OptimizerPlan& optimizer, const Mesh& mesh,
                                     const config::PrecisionConfig& precision) {
  std::vector<BufferPlan> buffers;
  const std::unordered_set<std::string> uncast = uncast_parameters(model, unit, precision);
  for (const std::size_t index : unit.parameters) {
    const ParameterInfo& parameter = model.parameters[index];
    check_trainable_dtype(parameter, precision);
    BufferPlan wanted = buffer_for(parameter, precision, uncast.contains(parameter.fqns.front()));
    const auto same = [&](const BufferPlan& buffer) {
      return buffer.dtype == wanted.dtype && buffer.compute_dtype == wanted.compute_dtype &&
             buffer.gather_dtype == wanted.gather_dtype && buffer.trainable == wanted.trainable &&
             buffer.replicated == wanted.replicated && buffer.tensor_cut == wanted.tensor_cut;
    };
    auto buffer = std::find_if(buffers.begin(), buffers.end(), same);
    if (buffer == buffers.end()) buffer = buffers.insert(buffer, std::move(wanted));
    buffer->parameters.push_back(index);
  }
  for (BufferPlan& buffer : buffers) {
    std::vector<ParameterSpec> specs;
    std::int64_t block = 1;
    std::unordered_map<std::string, std::size_t> index_of;
    for (const std::size_t index : buffer.parameters) {
      const ParameterInfo& parameter = model.parameters[index];
      specs.push_back({parameter.fqns, local_shape(parameter),
                       optimizer.group_of(parameter.fqns, parameter.shape), parameter.part,
                       parameter.sums_gradient});
      if (buffer.trainable)
        block = std::max(block, block_elems(optimizer.groups()[specs.back().group].tensors));
      index_of.emplace(parameter.fqns.front(), index);
    }
    const std::int64_t least = std::min({buffer.item_bytes, buffer.gather_bytes, buffer.reduce_bytes});
    buffer.layout = make_flat_layout(std::move(specs), least, buffer.replicated ? Mesh{} : mesh, block);
    for (std::size_t i = 0; i < buffer.parameters.size(); ++i)
      buffer.parameters[i] = index_of.at(buffer.layout.parameters[i].spec.fqns.front());
  }
  return buffers;
}

std::vector<std::string> widened_parameters(const ModelStructure& model,
                                            const config::PrecisionConfig& precision) {
  std::vector<std::string> names;
  for (const ParameterInfo& parameter : model.parameters) {
    if (is_widened(parameter, precision)) names.push_back(parameter.fqns.front());
  }
  return names;
}

}  // namespace accel
