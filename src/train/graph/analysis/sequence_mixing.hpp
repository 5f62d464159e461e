#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <optional>
#include <string>

namespace accel::train {

/// Looks for operators that let the tokens of a sequence see each other, or that count them, in a graph
/// without calls. accel::attention (run/module_attention.hpp) is not among them. Returns the first with the
/// line of the model that calls it: "aten::cumsum (model.py:12)". It is a guess at why parts of sequences
/// give other numbers than the whole ones, which ShardedModel::compare_parts() finds.
///
/// The list is that of operators which rarely work along another dimension: convolutions, pooling, recurrent
/// networks, scans, flips, transforms, ranges of numbers, and a softmax that is multiplied by something, as
/// an attention is that does not call scaled_dot_product_attention. A graph does not say which dimension is
/// that of the tokens, so that a sum or a slice along it is not found.
[[nodiscard]] std::optional<std::string> find_sequence_mixing(const torch::jit::Graph& graph);

/// Whether a graph without calls has operators that choose by comparing numbers, as those of experts do, so
/// that rounding may change much.
bool has_choices(const torch::jit::Graph& graph);

}  // namespace accel::train
