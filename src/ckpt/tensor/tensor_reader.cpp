#include "ckpt/tensor/tensor_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/error_context.hpp"
#include "ckpt/tensor/strided_copy.hpp"

namespace accel::ckpt {
namespace {

constexpr std::size_t kScratchBytes = std::size_t{4} << 20;
// Decoders that stay open, each at its position, for tensors whose rows come from several streams in turn.
// Each takes a few megabytes.
constexpr std::size_t kMostUnpackers = 8;
// A tensor with fewer extents gets no index.
constexpr std::size_t kIndexedExtents = 16;

// The byte offset of the tensor's element at `position` in the file of `extent`.
std::uint64_t source_of(const Extent& extent, const Dims& position, std::uint64_t item) {
  std::int64_t elems = 0;
  for (std::size_t d = 0; d < position.size(); ++d) {
    elems += (position[d] - extent.box.offsets[d]) * extent.strides[d];
  }
  return extent.offset + static_cast<std::uint64_t>(elems) * item;
}

void shift(Dims& position, const Dims& by, std::int64_t sign) {
  for (std::size_t d = 0; d < position.size(); ++d) position[d] += sign * by[d];
}

// The copy of `part` of the tensor to its place in `frame`, counted from element `begin` of `frame`.
StridedCopy copy_of(const Extent& extent, const Box& part, const Box& frame, std::int64_t begin,
                    std::uint64_t item) {
  Dims in_frame = part.offsets;
  shift(in_frame, frame.offsets, -1);
  const auto target = static_cast<std::uint64_t>(flat_index(frame.sizes, in_frame) - begin) * item;
  return plan_strided_copy(part.sizes, extent.strides, row_major_strides(frame.sizes),
                           source_of(extent, part.offsets, item), target, item);
}

}  // namespace

void TensorReader::read_range(const StoredTensor& tensor, std::int64_t begin, std::int64_t end,
                              std::span<std::byte> out) {
  read_box(tensor, Box::whole(tensor.shape), begin, end, out);
}

void TensorReader::read_box(const StoredTensor& tensor, const Box& box, std::int64_t begin, std::int64_t end,
                            std::span<std::byte> out) {
  if (out.size() != static_cast<std::uint64_t>(end - begin) * item_bytes(tensor.dtype)) {
    throw Error(ErrorKind::kFailure, fmt::format("elements {} to {} of '{}' do not fit {} bytes", begin, end,
                                                 tensor.name, out.size()));
  }
  if (!scratch_) scratch_ = std::make_unique_for_overwrite<std::byte[]>(kScratchBytes);
  const std::span scratch(scratch_.get(), kScratchBytes);
  for_each_part(tensor, box, begin, end, [&](const Extent& extent, const StridedCopy& copy) {
    if (extent.packed) {
      execute_strided_copy(copy, unpacker_of(extent), out, scratch);
    } else {
      FileSource source(files_.open(extent.file));
      if (sums_ == nullptr) return execute_strided_copy(copy, source, out, scratch);
      const std::string path = (files_.directory() / extent.file).string();
      SummingSource summing(source, path, *sums_);
      execute_strided_copy(copy, summing, out, scratch);
    }
  });
}

std::optional<std::vector<FileRun>> TensorReader::runs_of(const StoredTensor& tensor, const Box& box,
                                                          std::int64_t begin, std::int64_t end) {
  std::vector<FileRun> runs;
  bool scattered = false;
  for_each_part(tensor, box, begin, end, [&](const Extent& extent, const StridedCopy& copy) {
    scattered = scattered || !copy.loops.empty() || extent.packed;
    if (!scattered) runs.push_back({&extent.file, copy.source, copy.target, copy.run_bytes});
  });
  if (scattered) return std::nullopt;
  return runs;
}

void TensorReader::for_each_part(const StoredTensor& tensor, const Box& box, std::int64_t begin,
                                 std::int64_t end, const Visitor& visitor) {
  check_within(box, tensor.shape);
  std::vector<Box> wanted = boxes_of_range(box.sizes, begin, end);
  for (Box& part : wanted) shift(part.offsets, box.offsets, 1);

  std::vector<std::pair<const Extent*, Box>> parts;
  std::int64_t covered = 0;
  const auto visit = [&](const Box& part, const Extent& extent) {
    std::optional<Box> shared = intersect(part, extent.box);
    if (!shared) return;
    covered += shared->numel();
    parts.emplace_back(&extent, std::move(*shared));
  };
  const auto find_parts = [&] {
    covered = 0;
    parts.clear();
    for (const Box& part : wanted) {
      if (index_) {
        for (const std::size_t i : index_->candidates(part)) visit(part, tensor.extents[i]);
      } else {
        for (const Extent& extent : tensor.extents) visit(part, extent);
      }
    }
  };
  const bool many = tensor.extents.size() >= kIndexedExtents;
  const bool known = many && index_ && index_->seems_of(tensor.extents);
  if (!many) index_.reset();
  if (many && !known) index_.emplace(tensor.extents);
  find_parts();
  if (covered != end - begin && known) {
    // The index may be of another tensor that was at the same address.
    index_.emplace(tensor.extents);
    find_parts();
  }
  // Boxes that share elements would count some of them twice, in place of others that are missing.
  std::vector<BoxView> boxes;
  boxes.reserve(parts.size());
  for (const auto& [extent, part] : parts) boxes.emplace_back(part);
  with_context("tensor", tensor.name, [&] { check_disjoint(boxes); });
  if (covered == end - begin) {
    for (const auto& [extent, part] : parts) {
      visitor(*extent, copy_of(*extent, part, box, begin, item_bytes(tensor.dtype)));
    }
    return;
  }
  const bool whole = box == Box::whole(tensor.shape);
  throw Error(ErrorKind::kCorrupt,
              fmt::format("tensor '{}': the checkpoint holds {} of the elements {} to {}{}", tensor.name,
                          covered, begin, end, whole ? "" : " of the box " + to_string(box)))
      .hint("a chunk is missing; was the checkpoint written by all ranks?");
}

ZstdSource& TensorReader::unpacker_of(const Extent& extent) {
  const auto found = std::find_if(unpackers_.begin(), unpackers_.end(), [&](const auto& entry) {
    return entry.second.range() == *extent.packed && entry.first == extent.file;
  });
  if (found != unpackers_.end()) {
    unpackers_.splice(unpackers_.begin(), unpackers_, found);
  } else {
    if (unpackers_.size() == kMostUnpackers) unpackers_.pop_back();
    unpackers_.emplace_front(std::piecewise_construct, std::forward_as_tuple(extent.file),
                             std::forward_as_tuple(files_.open_own(extent.file), *extent.packed));
  }
  return unpackers_.front().second;
}

}  // namespace accel::ckpt
