#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/files/file.hpp"
#include "ckpt/tensor/box.hpp"
#include "ckpt/tensor/dtype.hpp"

namespace accel::ckpt {

/// The type of `__metadata__` in a safetensors file.
using StringMap = std::map<std::string, std::string>;

/// One tensor of a safetensors file: dense, row-major, little-endian.
struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kFloat32;
  Dims shape;               ///< The shape that torch gives it: it counts bytes of F4, not their halves.
  std::uint64_t begin = 0;  ///< Byte range in the buffer behind the header.
  std::uint64_t end = 0;
  /// Why the tensor cannot be read, such as "a tensor of the unknown dtype 'F99'"; else empty. If the dtype
  /// is known, rows of its shape share a byte, and `shape` is flat.
  std::string obstacle = {};
};

/// The header of a safetensors file (docs/formats.md, "safetensors").
struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  ///< The tensors, in the order of the buffer.
  StringMap metadata;
  std::uint64_t buffer_offset = 0;  ///< Where the buffer begins in the file: 8 + the length of the JSON.
  std::uint64_t buffer_bytes = 0;
};

/// The format's own limit on the JSON.
inline constexpr std::uint64_t kSafetensorsHeaderLimit = 100'000'000;

/// Parses the JSON of a header for a buffer of `buffer_bytes`. Throws Error (kCorrupt) unless it is an object
/// with distinct names, every tensor's range has the size that its dtype, if it is known, and shape need, and
/// the ranges tile the buffer without hole or overlap.
[[nodiscard]] SafetensorsHeader parse_safetensors_header(std::span<const std::byte> json,
                                                         std::uint64_t buffer_bytes);

/// Reads and parses the header of a file.
[[nodiscard]] SafetensorsHeader read_safetensors_header(const File& file);

/// A file to be written. Its entries have the order and the offsets that the official writer gives them.
struct SafetensorsLayout {
  SafetensorsHeader header;
  std::string prefix;  ///< The bytes before the buffer: length, JSON and padding.

  [[nodiscard]] std::uint64_t total_bytes() const { return header.buffer_offset + header.buffer_bytes; }
};

/// Lays out a file. Only the name, dtype and shape of each entry are read. Throws Error (kFailure) for an
/// element type that safetensors does not have, a name that comes twice, or a header beyond the limit.
[[nodiscard]] SafetensorsLayout plan_safetensors(std::vector<SafetensorsEntry> entries, StringMap metadata);

}  // namespace accel::ckpt
