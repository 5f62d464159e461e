#pragma once

#include <nlohmann/json_fwd.hpp>

#include "import/graph.hpp"

namespace accel {

/// Finds the nodes that change a parameter, a buffer or a constant in place, and refuses them (Error of kind
/// kFailure), except for a batch norm that counts its batches, which it does in training alone: that node is
/// marked, and its result becomes an alias of the buffer. The graph does not say when another one's change is
/// meant to happen.
///
/// An operator in place that has no result is refused whatever it changes, since TorchScript leaves it out.
/// `tensor_values` describes the values of the graph (their dtype), as in torch's schema.
void find_changes(ExportedGraph& graph, const nlohmann::json& tensor_values);

}  // namespace accel
