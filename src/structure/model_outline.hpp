#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/files/file.hpp"

namespace accel {

/// A model file with holes in place of its parameters' values: what a rank needs of a file that only another
/// rank can read. It has the code, the structure and the buffers, and takes a few megabytes however large the
/// parameters are.
class ModelOutline {
 public:
  /// The outline of `file` without the records `holes` (offset to size, not overlapping).
  static ModelOutline of(const File& file, std::map<std::uint64_t, std::uint64_t> holes);
  /// The outline of a file in memory, without holes.
  static ModelOutline of_bytes(std::vector<std::byte> file);
  /// The inverse of to_bytes(). Throws Error (kCorrupt) for other bytes.
  static ModelOutline from_bytes(std::span<const std::byte> bytes);
  [[nodiscard]] std::vector<std::byte> to_bytes() const;

  [[nodiscard]] std::uint64_t file_bytes() const { return file_bytes_; }
  [[nodiscard]] const std::map<std::uint64_t, std::uint64_t>& holes() const { return holes_; }
  /// Fills `out` with the file's bytes from `offset` on, and with zeros in the holes. A read past the end of
  /// the file is an Error (kCorrupt).
  void read(std::uint64_t offset, std::span<std::byte> out) const;
  /// Whether the outline has all these bytes, none of them in a hole.
  [[nodiscard]] bool has(std::uint64_t offset, std::uint64_t bytes) const;

 private:
  std::uint64_t file_bytes_ = 0;
  std::map<std::uint64_t, std::uint64_t> holes_;
  std::vector<std::byte> rest_;  ///< All bytes between the holes.
};

}  // namespace accel
