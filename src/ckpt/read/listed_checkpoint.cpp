#include "ckpt/read/listed_checkpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/error.hpp"
#include "base/interrupt.hpp"

namespace accel::ckpt {

ListedCheckpoint::ListedCheckpoint(Listing listing)
    : tensors_(std::move(listing.tensors)), objects_(std::move(listing.objects)) {
  contents_.kind = listing.kind;
  contents_.path = std::move(listing.path);
  contents_.directory = std::move(listing.directory);
  contents_.metadata = std::move(listing.metadata);
  contents_.dicts = std::move(listing.dicts);
  for (const ListedTensor& tensor : tensors_) {
    check_interrupted();
    contents_.tensors.push_back({fqn_of(tensor.path), tensor.path, tensor.dtype, tensor.shape,
                                 tensor.extents.size(), tensor.copies.size()});
  }
  for (const ListedObject& object : objects_) {
    contents_.objects.push_back({fqn_of(object.path), object.path});
  }

  std::vector<std::string_view> names;
  for (const TensorEntry& tensor : contents_.tensors) names.push_back(tensor.name);
  for (const ObjectEntry& object : contents_.objects) names.push_back(object.name);
  std::sort(names.begin(), names.end(), [](std::string_view a, std::string_view b) {
    check_interrupted();
    return a < b;
  });
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return;
  throw Error(ErrorKind::kFailure,
              fmt::format("'{}' has two entries that are called '{}' when their keys are "
                          "joined with dots",
                          contents_.path.string(), *twice));
}

StoredTensor ListedCheckpoint::locate_in(std::size_t tensor, FileCache&) const {
  const ListedTensor& listed = tensors_.at(tensor);
  const std::string& name = contents_.tensors[tensor].name;
  if (!listed.obstacle.empty()) {
    throw Error(ErrorKind::kFailure, fmt::format("'{}': tensor '{}' is {}, which accel does not read",
                                                 contents_.path.string(), name, listed.obstacle))
        .hint("save it as a plain tensor, or leave it out");
  }
  return {name, listed.dtype, listed.shape, listed.extents, listed.copies};
}

pickle::Value ListedCheckpoint::read_object(std::size_t object) { return objects_.at(object).value; }

}  // namespace accel::ckpt
