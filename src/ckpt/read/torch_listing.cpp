#include "ckpt/read/torch_listing.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/error_context.hpp"
#include "ckpt/torch/state_walk.hpp"

namespace accel::ckpt {

std::vector<Extent> extents_of(const std::string& file, const TorchFile& archive, const TorchTensor& tensor) {
  if (checked_numel(tensor.shape) == 0) return {};
  return {{file, archive.offset_of(tensor), Box::whole(tensor.shape), tensor.strides}};
}

void add_torch_file(Listing& listing, const std::string& file, const TorchFile& archive) {
  StateVisitor visitor;
  visitor.tensor = [&](const StatePath& path, const TorchTensor& tensor, const pickle::Value&) {
    // A file that holds one tensor and nothing else.
    ListedTensor listed{path.empty() ? StatePath{"tensor"} : path, tensor.dtype, tensor.shape, {}};
    listed.obstacle = tensor.obstacle;
    if (tensor.obstacle.empty()) {
      with_context("tensor", fqn_of(listed.path),
                   [&] { listed.extents = extents_of(file, archive, tensor); });
    }
    listing.tensors.push_back(std::move(listed));
  };
  visitor.object = [&](const StatePath& path, const pickle::Value& value) {
    listing.objects.push_back({path, value});
  };
  visitor.integer_keys = [&](const StatePath& path) { listing.dicts.insert(path); };
  walk_state(archive.read_pickle(), visitor);
}

}  // namespace accel::ckpt
