#pragma once

#include <string>
#include <vector>

#include "ckpt/dcp_read.hpp"
#include "ckpt/stored_tensor.hpp"

namespace accel::ckpt {

/// The tensors of a model's state dict, under the model's own names.
struct ModelTensors {
  std::vector<StoredTensor>
      tensors;  ///< In the order of the checkpoint, which is that of the model when it can be known.
  std::vector<std::string> objects;  ///< Names of what is no tensor.
};

/// The model in a DCP checkpoint. A single root key, such as Accelerate's `model`, is left out of the names.
/// Throws Error (kFailure) if it is an optimizer's, and what DcpReader::locate throws.
[[nodiscard]] ModelTensors model_tensors_of(DcpReader& reader);

/// Two names for the same bytes.
struct Tie {
  std::string dropped;
  std::string kept;

  friend bool operator==(const Tie&, const Tie&) = default;
};

/// Tied parameters: DCP writes their bytes under each of their names, and keeps no record that they are one.
/// Taken as tied are tensors of the same bytes, dtype and shape, of two or more dimensions, not constant,
/// whose names differ in more than numbers. The last three conditions keep apart what is equal without being
/// one: fresh biases and norms, and copies of a layer. The first in the order of `tensors` is kept. Reads the
/// data of likely pairs.
[[nodiscard]] std::vector<Tie> find_ties(const std::vector<StoredTensor>& tensors,
                                         const std::filesystem::path& directory);

}  // namespace accel::ckpt
