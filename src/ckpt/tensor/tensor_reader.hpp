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
#include "ckpt/io/read_sums.hpp"
#include "ckpt/io/zstd_source.hpp"
#include "ckpt/tensor/box.hpp"
#include "ckpt/tensor/extent_index.hpp"
#include "ckpt/tensor/stored_tensor.hpp"
#include "ckpt/tensor/strided_copy.hpp"

namespace accel::ckpt {

/// Bytes that are contiguous both in a file and in the elements that were asked for.
struct FileRun {
  const std::string* file = nullptr;  ///< The name in the tensor's extent.
  std::uint64_t offset = 0;           ///< Offset in the file.
  std::uint64_t target = 0;           ///< Offset in the elements that were asked for.
  std::uint64_t bytes = 0;
};

/// Reads stored tensors of one directory. Several threads must not use one at the same time. Reading one
/// tensor to its end before the next is fastest.
class TensorReader {
 public:
  explicit TensorReader(std::filesystem::path directory) : files_(std::move(directory)) {}

  /// Copies elements [begin, end) of the row-major tensor into `out`, whose size must be that many elements.
  /// The tensor's extents must have been checked to lie within it. Throws Error (kCorrupt) unless they hold
  /// each element of the range once.
  void read_range(const StoredTensor& tensor, std::int64_t begin, std::int64_t end, std::span<std::byte> out);

  /// Copies elements [begin, end) of the row-major contents of `box`, which must lie within the tensor, as
  /// read_range does.
  void read_box(const StoredTensor& tensor, const Box& box, std::int64_t begin, std::int64_t end,
                std::span<std::byte> out);

  /// The runs that read_box would read, or nothing if a piece is not one run in its file and in the result,
  /// or is packed. Throws what read_box throws.
  [[nodiscard]] std::optional<std::vector<FileRun>> runs_of(const StoredTensor& tensor, const Box& box,
                                                            std::int64_t begin, std::int64_t end);

  [[nodiscard]] FileCache& files() { return files_; }

  /// Makes read_range() and read_box() note in `sums`, which must outlive the reader, what they read of files
  /// that are not packed. Null ends that.
  void note_in(ReadSums* sums) { sums_ = sums; }

 private:
  using Visitor = std::function<void(const Extent&, const StridedCopy&)>;

  /// Calls `visitor` for each extent that has some of elements [begin, end) of `box`, with their copy to the
  /// result. Throws Error (kCorrupt) if the extents do not cover the elements.
  void for_each_part(const StoredTensor& tensor, const Box& box, std::int64_t begin, std::int64_t end,
                     const Visitor& visitor);

  ZstdSource& unpacker_of(const Extent& extent);

  FileCache files_;
  ReadSums* sums_ = nullptr;
  std::unique_ptr<std::byte[]> scratch_;  ///< It is not initialized: pages never used take no memory.
  std::list<std::pair<std::string, ZstdSource>> unpackers_;  ///< Files and unpackers, the last used first.
  std::optional<ExtentIndex> index_;  ///< The index of the tensor that was read last, if it has many extents.
};

}  // namespace accel::ckpt
