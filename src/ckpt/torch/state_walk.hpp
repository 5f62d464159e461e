#pragma once

#include <functional>

#include "ckpt/pickle/value.hpp"
#include "ckpt/tensor/state_path.hpp"
#include "ckpt/torch/tensor.hpp"

namespace accel::ckpt {

/// What walk_state calls for the leaves of a state dict, in its order.
struct StateVisitor {
  std::function<void(const StatePath& path, const TorchTensor& tensor, const pickle::Value& value)> tensor;
  std::function<void(const StatePath& path, const pickle::Value& value)> object;
};

/// Visits every tensor in a pickled value by its path, and everything else that is no container of tensors.
/// As in DCP, mappings with plain keys are always entered, lists if they hold a tensor or a mapping; besides,
/// so that no weight is lost, tuples and instances if there is a tensor in them. Of a whole pickled module,
/// parameters and buffers have the names that its state_dict() gives. A key that is neither a string nor an
/// integer is its str() in a path, as in DCP; one that has no simple str() is an Error (kFailure). Empty
/// containers vanish. A root that is itself a tensor has an empty path. Throws what torch_tensor_of throws,
/// with the path.
void walk_state(const pickle::Value& root, const StateVisitor& visitor);

}  // namespace accel::ckpt
