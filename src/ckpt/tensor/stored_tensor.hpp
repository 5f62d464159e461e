#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/io/byte_source.hpp"
#include "ckpt/tensor/box.hpp"
#include "ckpt/tensor/dtype.hpp"

namespace accel::ckpt {

/// Where one box of a tensor lies in a file.
struct Extent {
  std::string file;          ///< The path relative to the checkpoint's directory.
  std::uint64_t offset = 0;  ///< Byte offset, in the file, of the box's first element.
  Box box;                   ///< Which part of the tensor this is.
  Dims strides;              ///< Strides of the box in the file, in elements.
  /// If set, `offset` counts in what this range of the file unpacks to.
  std::optional<PackedRange> packed = std::nullopt;

  friend bool operator==(const Extent&, const Extent&) = default;
};

/// A tensor whose bytes lie in pieces in files. The readers of all formats give it, and merging and reading
/// of ranges work on it.
struct StoredTensor {
  std::string name;
  DType dtype = DType::kFloat32;
  Dims shape;
  std::vector<Extent> extents;
  /// Replicas of parts that `extents` has, written by further ranks. Their elements should be the same; a
  /// merge checks it.
  std::vector<Extent> copies = {};
};

}  // namespace accel::ckpt
