#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ckpt/box.hpp"
#include "ckpt/extent_index.hpp"
#include "ckpt/file_cache.hpp"
#include "ckpt/stored_tensor.hpp"

namespace accel::ckpt {

/// Reads stored tensors of one directory. Not for use by several threads at once. Fastest if one tensor is
/// read to its end before the next one begins.
class TensorReader {
 public:
  explicit TensorReader(std::filesystem::path directory) : files_(std::move(directory)) {}

  /// Copies elements [begin, end) of the row-major tensor into `out`, whose size must be that many elements.
  /// The tensor's extents must have been checked to lie within it and not to overlap. Throws Error (kCorrupt)
  /// if they leave a hole in the range.
  void read_range(const StoredTensor& tensor, std::int64_t begin, std::int64_t end, std::span<std::byte> out);

  /// As read_range, of elements [begin, end) of the row-major contents of `box`, which must lie within the
  /// tensor.
  void read_box(const StoredTensor& tensor, const Box& box, std::int64_t begin, std::int64_t end,
                std::span<std::byte> out);

  [[nodiscard]] FileCache& files() { return files_; }

 private:
  /// Elements copied of one box in the coordinates of `frame`, whose element `begin` is the first of `out`.
  std::int64_t copy_box(const StoredTensor& tensor, const Box& wanted, const Box& frame, std::int64_t begin,
                        std::span<std::byte> out);
  std::int64_t copy_extent(const Extent& extent, const Box& part, const Box& frame, std::int64_t begin,
                           std::uint64_t item, std::span<std::byte> out);

  FileCache files_;
  std::vector<std::byte> scratch_;
  std::optional<ExtentIndex> index_;  ///< Of the tensor that was read last, if it has many extents.
};

}  // namespace accel::ckpt
