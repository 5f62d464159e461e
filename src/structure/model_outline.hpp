#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/file.hpp"

namespace accel {

/// A model file with holes where its parameters' values are: what a rank needs of a file that only another
/// one sees. It has code, structure and buffers, and takes a few megabytes however large the parameters are.
class ModelOutline {
 public:
  /// Of `file`, whose records `holes` (offset to size, not overlapping) are left out.
  static ModelOutline of(const File& file, std::map<std::uint64_t, std::uint64_t> holes);
  /// What to_bytes() gave. Throws Error (kCorrupt) if it is anything else.
  static ModelOutline from_bytes(std::span<const std::byte> bytes);
  [[nodiscard]] std::vector<std::byte> to_bytes() const;

  [[nodiscard]] std::uint64_t file_bytes() const { return file_bytes_; }
  [[nodiscard]] const std::map<std::uint64_t, std::uint64_t>& holes() const { return holes_; }
  /// Fills `out` with the file's bytes from `offset` on, zeros in the holes. Past the file's end: Error
  /// (kCorrupt).
  void read(std::uint64_t offset, std::span<std::byte> out) const;
  /// Whether these bytes are there, none in a hole.
  [[nodiscard]] bool has(std::uint64_t offset, std::uint64_t bytes) const;

 private:
  std::uint64_t file_bytes_ = 0;
  std::map<std::uint64_t, std::uint64_t> holes_;
  std::vector<std::byte> rest_;  ///< All between the holes.
};

}  // namespace accel
