#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/io/file_cache.hpp"
#include "ckpt/io/zstd_source.hpp"
#include "ckpt/tensor/box.hpp"
#include "ckpt/tensor/extent_index.hpp"
#include "ckpt/tensor/stored_tensor.hpp"
#include "ckpt/tensor/strided_copy.hpp"

namespace accel::ckpt {

/// Bytes that lie together in a file and belong together in a tensor.
struct FileRun {
  const std::string* file = nullptr;  ///< Borrowed from the tensor's extent.
  std::uint64_t offset = 0;           ///< In the file.
  std::uint64_t target = 0;           ///< In the elements asked for.
  std::uint64_t bytes = 0;
};

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

  /// Where read_box would read from, if every piece is a single run in its file and in the result; nothing if
  /// one is scattered, or packed. Throws what read_box does.
  [[nodiscard]] std::optional<std::vector<FileRun>> runs_of(const StoredTensor& tensor, const Box& box,
                                                            std::int64_t begin, std::int64_t end);

  [[nodiscard]] FileCache& files() { return files_; }

 private:
  using Visitor = std::function<void(const Extent&, const StridedCopy&)>;

  /// Visits all parts of elements [begin, end) of `box`, with the copy that brings each into place. Throws if
  /// they do not cover the elements.
  void for_each_part(const StoredTensor& tensor, const Box& box, std::int64_t begin, std::int64_t end,
                     const Visitor& visitor);

  ZstdSource& unpacker_of(const Extent& extent);

  FileCache files_;
  std::unique_ptr<std::byte[]> scratch_;  ///< Not initialised: what is never used takes no memory.
  std::list<std::pair<std::string, ZstdSource>> unpackers_;  ///< By file; most recently used first.
  std::optional<ExtentIndex> index_;  ///< Of the tensor that was read last, if it has many extents.
};

}  // namespace accel::ckpt
