#include "import/program_signature.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.hpp"
#include "ckpt/pt2/archive.hpp"
#include "import/graph.hpp"
#include "import/sizes.hpp"

namespace accel {
namespace {

using nlohmann::json;

ProgramSize size_of(const json& size, const json& ranges) {
  if (size.contains("as_int")) {
    const std::int64_t fixed = ckpt::pt2_integer(size.at("as_int"));
    return {fixed, fixed};
  }
  const auto form = linear_size_of(size.at("as_expr").at("expr_str").get<std::string>());
  if (!form) return {};
  const SizeRange range = range_of(ranges, form->symbol);
  ProgramSize result;
  // torch.export takes sizes of at least 2 for granted, and programs are right for 1 and 0, too.
  if (range.least && *range.least > 2) result.least = form->size_at(*range.least);
  if (range.most) result.most = form->size_at(*range.most);
  return result;
}

std::optional<ckpt::DType> dtype_of(const json& number) {
  try {
    return ckpt::pt2_dtype(ckpt::pt2_integer(number));
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kFailure) return std::nullopt;
    throw;
  }
}

/// What is not written is not known: the import does not need it.
ProgramValue value_of(const json& program, const std::string& tensor, std::string name) {
  ProgramValue result{std::move(name), std::nullopt, {}};
  const json& values = program.at("graph_module").at("graph").at("tensor_values");
  if (!values.contains(tensor) || !values.at(tensor).contains("sizes")) return result;
  const json& value = values.at(tensor);
  if (value.contains("dtype")) result.dtype = dtype_of(value.at("dtype"));
  for (const json& size : value.at("sizes"))
    result.shape.push_back(size_of(size, program.at("range_constraints")));
  return result;
}

/// Operators that do not promote the dtypes of their tensors.
bool needs_one_dtype(std::string_view target) {
  constexpr std::array<std::string_view, 12> kNames = {"conv1d", "conv2d",     "conv3d",     "convolution",
                                                       "linear", "addmm",      "mm",         "bmm",
                                                       "matmul", "batch_norm", "layer_norm", "group_norm"};
  return std::find(kNames.begin(), kNames.end(), operator_in(target)) != kNames.end();
}

}  // namespace

ProgramSignature signature_of(const json& program, const ExportedGraph& graph) {
  ProgramSignature signature;
  for (const std::string& input : graph.inputs) {
    signature.inputs.push_back(value_of(program, input, input));
    signature.inputs.back().is_strict =
        std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const GraphNode& node) {
          return needs_one_dtype(node.target) &&
                 std::find(node.uses.begin(), node.uses.end(), input) != node.uses.end();
        });
  }
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
    signature.outputs.push_back(value_of(
        program, graph.outputs[i], graph.output_names.empty() ? std::to_string(i) : graph.output_names[i]));
  }
  return signature;
}

}  // namespace accel
