#include "train/fsdp/compiled_layers.hpp"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "structure/compiled_layers.hpp"
#include "train/graph/run/compiled_body.hpp"
#include "train/graph/run/compiled_code.hpp"

namespace accel::train {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw unfit_code(what); }

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<std::byte> code_of(const ModelFile& file, std::size_t package, bool is_backward,
                               std::uint64_t bytes) {
  const std::string record = record_of_code(package, is_backward);
  std::vector<std::byte> code = file.record(record);
  if (code.size() == bytes) return code;
  throw Error(ErrorKind::kCorrupt,
              fmt::format("the model file has {} bytes of '{}', and says that there are {}", code.size(),
                          record, bytes));
}

/// Throws unless the tensor `path` lies below the module.
void require_own(const torch::jit::Module& module, const std::string& name, const std::string& path) {
  c10::IValue value = module._ivalue();
  for (const std::string& part : split(path, '.')) {
    if (!value.isObject() || !value.toObjectRef().type()->hasAttribute(part))
      refuse(fmt::format("the compiled code of '{}' takes '{}', which the layer does not have", name, path));
    value = value.toObjectRef().getAttr(part);
  }
  if (!value.isTensor())
    refuse(fmt::format("the compiled code of '{}' takes '{}', which is not a tensor", name, path));
}

CompiledBodies load(const ModelFile& file, const torch::jit::Module& root,
                    const config::PrecisionConfig& precision) {
  const std::string text = text_of(file.record(fmt::format("extra/{}", kCompiledNotes)));
  const CompiledLayers layers = compiled_layers_for(text, precision.param_dtype, precision.autocast_dtype);
  require_code_for("torch", layers.torch, torch_version());
  if (!has_instruction_set(layers.instruction_set)) {
    refuse(
        fmt::format("the compiled code of the model is for processors with the instructions of {}, which "
                    "this one does not have",
                    layers.instruction_set));
  }
  std::vector<std::shared_ptr<const CompiledCode>> codes;
  for (std::size_t i = 0; i < layers.packages.size(); ++i) {
    const CompiledPackage& package = layers.packages[i];
    codes.push_back(std::make_shared<const CompiledCode>(package,
                                                         code_of(file, i, false, package.forward_bytes),
                                                         code_of(file, i, true, package.backward_bytes)));
  }
  CompiledBodies bodies;
  for (const auto& module : root.named_modules()) {
    const auto found = layers.layers.find(module.name);
    if (found == layers.layers.end()) continue;
    const std::string& name = module.name;
    const CompiledLayer& layer = found->second;
    const std::vector<torch::jit::Method> methods = module.value.get_methods();
    if (methods.size() != 1 || methods.front().name() != "forward")
      refuse(fmt::format("'{}' is called several times in a step, and compiled code is for one call", name));
    for (const CompiledTensor& tensor : layers.packages[layer.package].takes) {
      if (!tensor.own.empty()) require_own(module.value, name, tensor.own);
    }
    bodies.emplace(name,
                   compiled_body(codes[layer.package], layer, methods.front().function().getSchema(), name));
  }
  if (bodies.size() != layers.layers.size())
    refuse("the compiled code of the model is for layers that it does not have");
  return bodies;
}

}  // namespace

CompiledBodies compiled_bodies(const ModelFile& file, const torch::jit::Module& root,
                               const config::CompileConfig& config, const config::PrecisionConfig& precision,
                               Group& world) {
  CompiledBodies bodies;
  std::string why;
  try {
    bodies = load(file, root, precision);
  } catch (const Error& error) {
    if (config.fullgraph || error.kind() == ErrorKind::kCorrupt) throw;
    why = error.message();
  }
  std::array<double, 1> ready = {why.empty() ? 1.0 : 0.0};
  world.all_reduce_sum(ready);
  if (ready[0] > 0 && ready[0] < world.size()) {
    throw Error(ErrorKind::kUsage,
                why.empty() ? "the compiled code of the model does not fit on other ranks" : why)
        .hint("all ranks must run compiled code, or none: set dynamo_backend: NO");
  }
  if (world.rank() == 0) {
    why.empty() ? log::info(fmt::format("{} layers run compiled code", bodies.size()))
                : log::warn(fmt::format("no layer runs compiled code: {}", why));
  }
  return bodies;
}

}  // namespace accel::train
