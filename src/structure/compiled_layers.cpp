#include "structure/compiled_layers.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "base/files/json_text.hpp"
#include "base/text.hpp"

namespace accel {
namespace {

using nlohmann::json;

constexpr std::int64_t kVersion = 3;
constexpr std::uint64_t kMostCodeBytes = std::uint64_t{256} << 20;

void require(bool holds, std::string_view what) {
  if (!holds) throw_corrupt(fmt::format("it has {}", what));
}

std::size_t place_in(const json& value, std::size_t count, std::string_view what) {
  require(value.is_number_unsigned() && value.get<std::uint64_t>() < count, what);
  return value.get<std::size_t>();
}

CompiledShape shape_of(const json& sizes) {
  CompiledShape shape;
  for (const json& size : sizes) {
    if (size.is_string()) {
      shape.emplace_back(size.get<std::string>());
    } else {
      require(size.is_number_unsigned(), "a size that is not one");
      shape.emplace_back(size.get<std::int64_t>());
    }
  }
  return shape;
}

CompiledTensor tensor_of(const json& entry) {
  CompiledTensor tensor;
  tensor.own = entry.value("own", std::string());
  require(!tensor.own.empty() || entry.contains("input"),
          "a tensor that is neither of the layer nor an input");
  if (tensor.own.empty()) tensor.input = entry.at("input").get<std::size_t>();
  tensor.dtype = entry.at("dtype").get<std::string>();
  tensor.gradient = entry.at("gradient").get<bool>();
  tensor.shape = shape_of(entry.at("shape"));
  return tensor;
}

/// Reads "taken3", "result1" or "gradient0".
BackwardInput backward_input_of(const std::string& text) {
  using Kind = BackwardInput::Kind;
  constexpr std::pair<std::string_view, Kind> kKinds[] = {
      {"taken", Kind::kTaken}, {"result", Kind::kResult}, {"gradient", Kind::kGradient}};
  for (const auto& [name, kind] : kKinds) {
    if (!text.starts_with(name)) continue;
    const std::string digits = text.substr(name.size());
    constexpr std::size_t kMostDigits = 6;
    require(!digits.empty() && digits.size() <= kMostDigits &&
                digits.find_first_not_of("0123456789") == std::string::npos,
            "an input of backward that is not known");
    return {kind, std::stoul(digits)};
  }
  throw_corrupt("it has an input of backward that is not known");
}

std::uint64_t bytes_of(const json& entry, const char* which) {
  const auto bytes = entry.at("bytes").at(which).get<std::uint64_t>();
  require(bytes <= kMostCodeBytes, "code of more than 256 MB");
  return bytes;
}

OutputGradient output_gradient_of(const json& entry, std::size_t outputs) {
  OutputGradient gradient{place_in(entry.at("output"), outputs, "a gradient of no output"),
                          entry.at("dtype").get<std::string>(),
                          shape_of(entry.at("shape")),
                          {}};
  const std::size_t dims = gradient.shape.size();
  require(entry.at("order").size() == dims, "an order that is not of all dimensions");
  for (const json& dim : entry.at("order"))
    gradient.order.push_back(place_in(dim, dims, "a dimension that is not one"));
  require(std::set(gradient.order.begin(), gradient.order.end()).size() == dims, "a dimension twice");
  return gradient;
}

CompiledPackage package_of(const json& entry) {
  CompiledPackage package;
  package.class_name = entry.at("class").get<std::string>();
  for (const json& tensor : entry.at("takes")) package.takes.push_back(tensor_of(tensor));
  package.outputs = entry.at("outputs").get<std::size_t>();
  std::set<std::size_t> differentiable;
  for (const json& gradient : entry.at("output_gradients")) {
    package.output_gradients.push_back(output_gradient_of(gradient, package.outputs));
    require(differentiable.insert(package.output_gradients.back().output).second,
            "two gradients of one output");
  }
  for (const json& text : entry.at("backward_takes")) {
    const BackwardInput input = backward_input_of(text.get<std::string>());
    const std::size_t count = input.kind == BackwardInput::Kind::kTaken      ? package.takes.size()
                              : input.kind == BackwardInput::Kind::kGradient ? package.output_gradients.size()
                                                                             : SIZE_MAX;
    require(input.index < count, "an input of backward that nothing gives");
    package.backward_takes.push_back(input);
  }
  for (const json& place : entry.at("gradients"))
    package.gradients.push_back(place_in(place, package.takes.size(), "a gradient of nothing"));
  package.forward_bytes = bytes_of(entry, "forward");
  package.backward_bytes = bytes_of(entry, "backward");
  return package;
}

CompiledLayer layer_of(const json& entry, const std::vector<CompiledPackage>& packages) {
  CompiledLayer layer;
  layer.package = place_in(entry.at("package"), packages.size(), "a layer without code");
  layer.inputs = entry.at("inputs").get<std::vector<std::string>>();
  for (const CompiledTensor& tensor : packages[layer.package].takes)
    require(!tensor.own.empty() || tensor.input < layer.inputs.size(), "an input that no layer has");
  return layer;
}

}  // namespace

std::string text_of_precision(const std::string& dtype, const std::string& autocast) {
  return autocast.empty() ? dtype : fmt::format("{} under autocast to {}", dtype, autocast);
}

std::string CompiledLayers::summary() const {
  std::uint64_t bytes = 0;
  for (const CompiledPackage& package : packages) bytes += package.forward_bytes + package.backward_bytes;
  std::map<std::string, std::size_t> counts;
  for (const auto& [path, layer] : layers) ++counts[packages[layer.package].class_name];
  std::vector<std::string> parts;
  parts.reserve(counts.size());
  for (const auto& [name, count] : counts)
    parts.push_back(fmt::format("{} {} of {}", count, count == 1 ? "layer" : "layers", name));
  return fmt::format("{} ({}, torch {}, {}, {})", fmt::join(parts, ", "), format_bytes(bytes), torch,
                     instruction_set, text_of_precision(dtype, autocast));
}

Error unfit_code(const std::string& what, std::string_view flags) {
  return Error(ErrorKind::kUsage, what)
      .hint(fmt::format("export the model with accel-export --compile{} on a machine like this one, or set "
                        "dynamo_backend: NO",
                        flags));
}

void require_code_for(std::string_view what, const std::string& code, const std::string& run,
                      std::string_view flags) {
  if (code == run) return;
  throw unfit_code(
      fmt::format("the compiled code of the model is for {} {}, and this run has {}", what, code, run),
      flags);
}

CompiledLayers compiled_layers_for(const std::string& text, const std::string& dtype,
                                   const std::string& autocast) {
  if (text.empty())
    throw unfit_code("dynamo_backend: INDUCTOR asks for compiled code, and the model file has none");
  CompiledLayers layers = parse_compiled_layers(text);
  const std::string run = dtype.empty() ? "float32" : dtype;
  require_code_for("the device", layers.device, "cpu");
  require_code_for(
      "the dtype", text_of_precision(layers.dtype, layers.autocast), text_of_precision(run, autocast),
      fmt::format(" --dtype {}{}{}", run, autocast.empty() ? "" : " --compile-autocast ", autocast));
  return layers;
}

std::string record_of_code(std::size_t package, bool is_backward) {
  return fmt::format("{}{}_{}.so", kCompiledFolder, package, is_backward ? "backward" : "forward");
}

CompiledLayers parse_compiled_layers(const std::string& text) {
  try {
    const json document = parse_json(text);
    const auto version = document.at("version").get<std::int64_t>();
    if (version != kVersion) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("the compiled code of the model has version {} of its description, and accel "
                              "reads version {}",
                              version, kVersion))
          .hint("export the model again with the accel-export of this version");
    }
    CompiledLayers layers{document.at("torch").get<std::string>(),
                          document.at("device").get<std::string>(),
                          document.at("instruction_set").get<std::string>(),
                          document.at("dtype").get<std::string>(),
                          document.at("autocast").get<std::string>(),
                          {},
                          {}};
    for (const json& entry : document.at("packages")) layers.packages.push_back(package_of(entry));
    for (const auto& [path, entry] : document.at("units").items())
      layers.layers.emplace(path, layer_of(entry, layers.packages));
    return layers;
  } catch (const json::exception& error) {
    throw Error(ErrorKind::kCorrupt, fmt::format("the extra file {} is malformed: {}", kCompiledNotes,
                                                 without_json_tag(error.what())));
  } catch (Error& error) {
    if (error.kind() == ErrorKind::kCorrupt)
      error.add_context(fmt::format("the extra file {}", kCompiledNotes));
    throw;
  }
}

}  // namespace accel
