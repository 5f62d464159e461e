#include "ckpt/read/checkpoint.hpp"

#include <fmt/format.h>

#include "base/error.hpp"
#include "ckpt/tensor/box.hpp"

namespace accel::ckpt {

StoredTensor Checkpoint::locate(std::size_t tensor) {
  if (!files_) files_.emplace(directory());
  return locate_in(tensor, *files_);
}

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
