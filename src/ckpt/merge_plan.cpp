#include "ckpt/merge_plan.hpp"

#include <fmt/format.h>

#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/text.hpp"

namespace accel::ckpt {
namespace {

void check_extents(const StoredTensor& tensor) {
  std::vector<Box> boxes;
  for (const Extent& extent : tensor.extents) boxes.push_back(extent.box);
  try {
    check_tiling(boxes, tensor.shape);
  } catch (Error& e) {
    e.add_context(fmt::format("tensor '{}' of shape {}", tensor.name, to_string(tensor.shape)));
    throw;
  }
}

}  // namespace

MergePlan plan_merge(std::vector<StoredTensor> tensors, std::vector<Tie> ties) {
  MergePlan plan;
  StringMap metadata{{"format", "pt"}};
  std::set<std::string_view> dropped;
  for (const Tie& tie : ties) {
    dropped.insert(tie.dropped);
    metadata.emplace(tie.dropped, tie.kept);
  }
  std::map<std::string, StoredTensor> by_name;
  std::vector<SafetensorsEntry> entries;
  for (StoredTensor& tensor : tensors) {
    check_extents(tensor);
    if (dropped.contains(tensor.name)) continue;
    entries.push_back({tensor.name, tensor.dtype, tensor.shape, 0, 0});
    std::string name = tensor.name;
    by_name.emplace(std::move(name), std::move(tensor));
  }
  SafetensorsLayout layout = plan_safetensors(std::move(entries), std::move(metadata));
  for (const SafetensorsEntry& entry : layout.header.entries) {
    plan.tensors.push_back({std::move(by_name.at(entry.name)), layout.header.buffer_offset + entry.begin,
                            entry.end - entry.begin});
  }
  plan.total_bytes = layout.total_bytes();
  plan.prefix = std::move(layout.prefix);
  plan.ties = std::move(ties);
  return plan;
}

std::string describe(const MergePlan& plan) {
  std::string text;
  for (const MergeTensor& tensor : plan.tensors) {
    text += fmt::format("{} {} {} -> bytes {} to {}\n", tensor.source.name, torch_name(tensor.source.dtype),
                        to_string(tensor.source.shape), tensor.target, tensor.target + tensor.bytes);
    for (const Extent& extent : tensor.source.extents) {
      text += fmt::format("  {} from {} at byte {}\n", to_string(extent.box), extent.file, extent.offset);
    }
  }
  for (const Tie& tie : plan.ties)
    text += fmt::format("{} is left out: the same as {}\n", tie.dropped, tie.kept);
  text += fmt::format("{} tensors, {}\n", plan.tensors.size(), format_bytes(plan.total_bytes));
  return text;
}

}  // namespace accel::ckpt
