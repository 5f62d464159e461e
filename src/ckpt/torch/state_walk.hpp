#pragma once

#include <functional>

#include "ckpt/pickle/value.hpp"
#include "ckpt/tensor/state_path.hpp"
#include "ckpt/torch/tensor.hpp"

namespace accel::ckpt {

/// The functions that walk_state calls for the leaves of a state dict, in its order.
struct StateVisitor {
  std::function<void(const StatePath& path, const TorchTensor& tensor, const pickle::Value& value)> tensor;
  std::function<void(const StatePath& path, const pickle::Value& value)> object;
  /// Is called for a mapping with integer keys, if it is set. Their paths look like those of a list.
  std::function<void(const StatePath& path)> integer_keys = {};
};

/// Visits every tensor in a pickled value with its path, and every other value that is not entered.
///
/// As in DCP, mappings with plain keys are always entered, and lists if they contain a tensor or a mapping.
/// Tuples and instances are entered as well if they contain a tensor, so that no weight is lost. The
/// parameters and buffers of a pickled module have the names that its state_dict() gives: one key with dots,
/// so that a submodule called `model` is not taken for a part of a checkpoint. A key that is neither a string
/// nor an integer becomes its str() in a path, as in DCP; a key without a simple str() above a tensor is an
/// Error (kFailure). Empty containers are not visited, except that `state`, of an
/// optimizer that keeps nothing, is an object. A root that is a tensor has an empty path. Throws what
/// torch_tensor_of throws, with the path.
void walk_state(const pickle::Value& root, const StateVisitor& visitor);

}  // namespace accel::ckpt
