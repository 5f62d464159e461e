#include "ckpt/read/checkpoint.hpp"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "base/error.hpp"
#include "base/error_context.hpp"
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

std::string Checkpoint::place_of(std::size_t tensor) {
  const StoredTensor stored = locate(tensor);
  if (stored.extents.empty()) return {};
  const Extent& first = stored.extents.front();
  return fmt::format("{}:{}", first.file, first.packed ? first.packed->offset : first.offset);
}

bool Checkpoint::shares_bytes(std::size_t a, std::size_t b) {
  const StoredTensor stored_a = locate(a);
  const StoredTensor stored_b = locate(b);
  return stored_a.dtype == stored_b.dtype && stored_a.shape == stored_b.shape &&
         stored_a.extents == stored_b.extents;
}

std::vector<std::vector<std::size_t>> Checkpoint::recorded_ties() const { return {}; }

std::string Checkpoint::file_of_object(std::size_t) const { return {}; }

void Checkpoint::check_coverage(std::size_t tensor) {
  const StoredTensor stored = locate(tensor);
  std::vector<Box> boxes;
  boxes.reserve(stored.extents.size());
  for (const Extent& extent : stored.extents) boxes.push_back(extent.box);
  with_context([&] { return fmt::format("tensor '{}' of shape {}", stored.name, to_string(stored.shape)); },
               [&] { check_tiling(boxes, stored.shape); });
}

std::vector<std::vector<std::size_t>> groups_of(const std::vector<TensorEntry>& tensors,
                                                const std::map<std::string, std::string>& tied) {
  if (tied.empty()) return {};
  std::map<std::string, std::vector<std::size_t>> by_name;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto found = tied.find(tensors[i].name);
    by_name[found == tied.end() ? tensors[i].name : found->second].push_back(i);
  }
  std::vector<std::vector<std::size_t>> groups;
  for (auto& [name, group] : by_name) {
    if (group.size() > 1) groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace accel::ckpt
