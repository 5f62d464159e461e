#include "train/fsdp/buffer_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "ckpt/dtype.hpp"

namespace accel::train {
namespace {

bool decays(const std::vector<std::string>& fqns, const std::vector<std::string>& no_decay) {
  return std::none_of(no_decay.begin(), no_decay.end(), [&](const std::string& part) {
    return std::any_of(fqns.begin(), fqns.end(),
                       [&](const std::string& fqn) { return fqn.find(part) != std::string::npos; });
  });
}

void check_trainable_dtype(const ParameterInfo& parameter) {
  if (!parameter.requires_grad || parameter.dtype == "float32") return;
  throw Error(ErrorKind::kUsage,
              fmt::format("parameter '{}' requires grad and is {}; training in another dtype than "
                          "float32 is not there yet",
                          parameter.fqns.front(), parameter.dtype))
      .hint("export the model in float32");
}

std::int64_t item_bytes_of(const ParameterInfo& parameter) {
  const auto dtype = ckpt::dtype_of_torch_name(parameter.dtype);
  if (!dtype) {
    throw Error(ErrorKind::kUsage, fmt::format("parameter '{}' is {}, which cannot be sharded",
                                               parameter.fqns.front(), parameter.dtype));
  }
  return static_cast<std::int64_t>(ckpt::item_bytes(*dtype));
}

std::uint64_t bytes_of(std::int64_t numel, std::int64_t item_bytes) {
  return static_cast<std::uint64_t>(checked_mul(numel, item_bytes));
}

}  // namespace

std::uint64_t BufferPlan::bytes() const { return bytes_of(layout.numel(), item_bytes); }
std::uint64_t BufferPlan::shard_bytes() const { return bytes_of(layout.shard_numel, item_bytes); }

std::vector<BufferPlan> plan_buffers(const ModelStructure& model, const UnitPlan& unit,
                                     const std::vector<std::string>& no_decay, const Mesh& mesh) {
  std::vector<BufferPlan> buffers;
  for (const std::size_t index : unit.parameters) {
    const ParameterInfo& parameter = model.parameters[index];
    check_trainable_dtype(parameter);
    const auto same = [&](const BufferPlan& buffer) {
      return buffer.dtype == parameter.dtype && buffer.trainable == parameter.requires_grad &&
             buffer.replicated == parameter.ignored;
    };
    auto buffer = std::find_if(buffers.begin(), buffers.end(), same);
    if (buffer == buffers.end()) {
      buffers.push_back(
          {parameter.dtype, item_bytes_of(parameter), parameter.requires_grad, parameter.ignored, {}, {}});
      buffer = buffers.end() - 1;
    }
    buffer->parameters.push_back(index);
  }
  for (BufferPlan& buffer : buffers) {
    std::vector<ParameterSpec> specs;
    std::unordered_map<std::string, std::size_t> index_of;
    for (const std::size_t index : buffer.parameters) {
      const ParameterInfo& parameter = model.parameters[index];
      specs.push_back({parameter.fqns, parameter.shape, decays(parameter.fqns, no_decay)});
      index_of.emplace(parameter.fqns.front(), index);
    }
    buffer.layout = make_flat_layout(std::move(specs), buffer.item_bytes, buffer.replicated ? Mesh{} : mesh);
    for (std::size_t i = 0; i < buffer.parameters.size(); ++i)
      buffer.parameters[i] = index_of.at(buffer.layout.parameters[i].spec.fqns.front());
  }
  return buffers;
}

}  // namespace accel::train
