#pragma once

#include <string>

#include "ckpt/read/listed_checkpoint.hpp"
#include "ckpt/torch/file.hpp"

namespace accel::ckpt {

/// Adds all tensors and objects of an archive to `listing`; `file` is its name in the listing's directory.
/// Throws Error (kCorrupt) for a tensor that does not lie in its storage.
void add_torch_file(Listing& listing, const std::string& file, const TorchFile& archive);

/// Where a whole tensor of an archive lies; empty if it has no elements.
[[nodiscard]] std::vector<Extent> extents_of(const std::string& file, const TorchFile& archive,
                                             const TorchTensor& tensor);

}  // namespace accel::ckpt
