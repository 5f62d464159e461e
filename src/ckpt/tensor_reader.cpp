#include "ckpt/tensor_reader.hpp"

#include <fmt/format.h>

#include <cstddef>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "ckpt/strided_copy.hpp"

namespace accel::ckpt {
namespace {

constexpr std::size_t kScratchBytes = std::size_t{4} << 20;
// Fewer extents are looked at one by one.
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

}  // namespace

void TensorReader::read_range(const StoredTensor& tensor, std::int64_t begin, std::int64_t end,
                              std::span<std::byte> out) {
  read_box(tensor, Box::whole(tensor.shape), begin, end, out);
}

void TensorReader::read_box(const StoredTensor& tensor, const Box& box, std::int64_t begin, std::int64_t end,
                            std::span<std::byte> out) {
  check_within(box, tensor.shape);
  std::vector<Box> wanted = boxes_of_range(box.sizes, begin, end);
  if (out.size() != static_cast<std::uint64_t>(end - begin) * item_bytes(tensor.dtype)) {
    throw Error(ErrorKind::kFailure, fmt::format("elements {} to {} of '{}' do not fit {} bytes", begin, end,
                                                 tensor.name, out.size()));
  }
  for (Box& part : wanted) shift(part.offsets, box.offsets, 1);
  if (scratch_.empty()) scratch_.resize(kScratchBytes);

  const auto copy_all = [&] {
    std::int64_t covered = 0;
    for (const Box& part : wanted) covered += copy_box(tensor, part, box, begin, out);
    return covered;
  };
  const bool many = tensor.extents.size() >= kIndexedExtents;
  const bool known = many && index_ && index_->seems_of(tensor.extents);
  if (!many) index_.reset();
  if (many && !known) index_.emplace(tensor.extents);
  std::int64_t covered = copy_all();
  if (covered != end - begin && known) {
    // Another tensor may have come to lie where the last one was.
    index_.emplace(tensor.extents);
    covered = copy_all();
  }
  if (covered != end - begin) {
    const bool whole = box == Box::whole(tensor.shape);
    throw Error(ErrorKind::kCorrupt,
                fmt::format("tensor '{}': the checkpoint holds {} of the elements {} to {}{}", tensor.name,
                            covered, begin, end, whole ? "" : " of the box " + to_string(box)))
        .hint("a chunk is missing; was the checkpoint written by all ranks?");
  }
}

std::int64_t TensorReader::copy_box(const StoredTensor& tensor, const Box& wanted, const Box& frame,
                                    std::int64_t begin, std::span<std::byte> out) {
  const std::uint64_t item = item_bytes(tensor.dtype);
  std::int64_t covered = 0;
  const auto visit = [&](const Extent& extent) {
    if (const std::optional<Box> part = intersect(wanted, extent.box)) {
      covered += copy_extent(extent, *part, frame, begin, item, out);
    }
  };
  if (index_) {
    for (const std::size_t i : index_->candidates(wanted)) visit(tensor.extents[i]);
  } else {
    for (const Extent& extent : tensor.extents) visit(extent);
  }
  return covered;
}

std::int64_t TensorReader::copy_extent(const Extent& extent, const Box& part, const Box& frame,
                                       std::int64_t begin, std::uint64_t item, std::span<std::byte> out) {
  Dims in_frame = part.offsets;
  shift(in_frame, frame.offsets, -1);
  const auto target = static_cast<std::uint64_t>(flat_index(frame.sizes, in_frame) - begin) * item;
  const StridedCopy copy = plan_strided_copy(part.sizes, extent.strides, row_major_strides(frame.sizes),
                                             source_of(extent, part.offsets, item), target, item);
  execute_strided_copy(copy, files_.open(extent.file), out, scratch_);
  return part.numel();
}

}  // namespace accel::ckpt
