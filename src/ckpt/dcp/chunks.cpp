#include "ckpt/dcp/chunks.hpp"

#include <algorithm>
#include <utility>

namespace accel::ckpt {

DcpFiles::DcpFiles(std::span<const Entry> entries, std::vector<std::vector<std::string>> transform_lists)
    : transform_lists_(std::move(transform_lists)) {
  std::size_t bytes = 0;
  for (const Entry& entry : entries) bytes += entry.name.size();
  names_.reserve(bytes);
  files_.reserve(entries.size());
  for (const Entry& entry : entries) {
    const std::size_t begin = names_.size();
    names_.insert(names_.end(), entry.name.begin(), entry.name.end());
    files_.push_back({{names_.data() + begin, entry.name.size()}, transform_lists_.at(entry.transforms)});
  }
}

void DcpChunks::reserve(std::size_t count, std::size_t dims) {
  numbers_.reserve(2 * dims * count);
  places_.reserve(count);
}

void DcpChunks::add(BoxView box) {
  if (empty()) dims_ = box.offsets.size();
  numbers_.insert(numbers_.end(), box.offsets.begin(), box.offsets.end());
  numbers_.insert(numbers_.end(), box.sizes.begin(), box.sizes.end());
  places_.push_back({});
}

void DcpChunks::add(const DcpChunk& chunk) {
  add(chunk.box);
  places_.back() = chunk.where;
}

void DcpChunks::copy(std::size_t from, std::size_t to) {
  if (from == to) return;
  std::copy_n(numbers_.data() + 2 * dims_ * from, 2 * dims_, numbers_.data() + 2 * dims_ * to);
  places_[to] = places_[from];
}

void DcpChunks::truncate(std::size_t count) {
  numbers_.resize(2 * dims_ * count);
  places_.resize(count);
}

LargeVector<BoxView> DcpChunks::boxes() const {
  LargeVector<BoxView> boxes;
  boxes.reserve(size());
  for (std::size_t i = 0; i < size(); ++i) boxes.push_back(box(i));
  return boxes;
}

}  // namespace accel::ckpt
