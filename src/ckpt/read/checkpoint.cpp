#include "ckpt/read/checkpoint.hpp"

#include <fmt/format.h>

#include <set>

#include "base/error.hpp"
#include "ckpt/tensor/box.hpp"

namespace accel::ckpt {

StoredTensor Checkpoint::locate(std::size_t tensor) {
  if (!files_) files_.emplace(directory());
  return locate_in(tensor, *files_);
}

TensorFiles Checkpoint::files_of(std::size_t tensor) {
  const auto names_of = [](const std::vector<Extent>& extents) {
    std::set<std::string> names;
    for (const Extent& extent : extents) names.insert(extent.file);
    return std::vector<std::string>(names.begin(), names.end());
  };
  const StoredTensor stored = locate(tensor);
  return {names_of(stored.extents), names_of(stored.copies)};
}

std::string Checkpoint::file_of_object(std::size_t) const { return {}; }

void Checkpoint::check_coverage(std::size_t tensor) {
  const StoredTensor stored = locate(tensor);
  std::vector<Box> boxes;
  boxes.reserve(stored.extents.size());
  for (const Extent& extent : stored.extents) boxes.push_back(extent.box);
  try {
    check_tiling(boxes, stored.shape);
  } catch (Error& e) {
    e.add_context(fmt::format("tensor '{}' of shape {}", stored.name, to_string(stored.shape)));
    throw;
  }
}

}  // namespace accel::ckpt
