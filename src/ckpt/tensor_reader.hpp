#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "ckpt/file_cache.hpp"
#include "ckpt/stored_tensor.hpp"

namespace accel::ckpt {

/// Reads stored tensors of one directory. Not for use by several threads at once.
class TensorReader {
 public:
  explicit TensorReader(std::filesystem::path directory) : files_(std::move(directory)) {}

  /// Copies elements [begin, end) of the row-major tensor into `out`, whose size must be that many elements.
  /// The tensor's extents must have been checked to lie within it and not to overlap. Throws Error (kCorrupt)
  /// if they leave a hole in the range.
  void read_range(const StoredTensor& tensor, std::int64_t begin, std::int64_t end, std::span<std::byte> out);

  [[nodiscard]] FileCache& files() { return files_; }

 private:
  FileCache files_;
  std::vector<std::byte> scratch_;
};

}  // namespace accel::ckpt
