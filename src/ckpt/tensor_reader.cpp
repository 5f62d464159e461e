#include "ckpt/tensor_reader.hpp"

#include <fmt/format.h>

#include <numeric>
#include <optional>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "ckpt/strided_copy.hpp"

namespace accel::ckpt {
namespace {

constexpr std::size_t kScratchBytes = std::size_t{4} << 20;

// The byte offset of the tensor's element at `position` in the file of `extent`.
std::uint64_t source_of(const Extent& extent, const Dims& position, std::uint64_t item) {
  std::int64_t elems = 0;
  for (std::size_t d = 0; d < position.size(); ++d) {
    elems += (position[d] - extent.box.offsets[d]) * extent.strides[d];
  }
  return extent.offset + static_cast<std::uint64_t>(elems) * item;
}

}  // namespace

void TensorReader::read_range(const StoredTensor& tensor, std::int64_t begin, std::int64_t end,
                              std::span<std::byte> out) {
  const std::uint64_t item = item_bytes(tensor.dtype);
  const std::vector<Box> wanted = boxes_of_range(tensor.shape, begin, end);
  if (out.size() != static_cast<std::uint64_t>(end - begin) * item) {
    throw Error(ErrorKind::kFailure, fmt::format("elements {} to {} of '{}' do not fit {} bytes", begin, end,
                                                 tensor.name, out.size()));
  }
  if (scratch_.empty()) scratch_.resize(kScratchBytes);

  const Dims strides = row_major_strides(tensor.shape);
  std::int64_t covered = 0;
  for (const Box& box : wanted) {
    for (const Extent& extent : tensor.extents) {
      const std::optional<Box> part = intersect(box, extent.box);
      if (!part) continue;
      const auto target = static_cast<std::uint64_t>(flat_index(tensor.shape, part->offsets) - begin) * item;
      const StridedCopy copy = plan_strided_copy(part->sizes, extent.strides, strides,
                                                 source_of(extent, part->offsets, item), target, item);
      execute_strided_copy(copy, files_.open(extent.file), out, scratch_);
      covered += part->numel();
    }
  }
  if (covered != end - begin) {
    throw Error(ErrorKind::kCorrupt,
                fmt::format("tensor '{}': the checkpoint holds {} of the elements {} to {}", tensor.name,
                            covered, begin, end))
        .hint("a chunk is missing; was the checkpoint written by all ranks?");
  }
}

}  // namespace accel::ckpt
