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
  std::string file;          ///< Relative to the checkpoint's directory.
  std::uint64_t offset = 0;  ///< Byte offset, in the file, of the box's first element.
  Box box;                   ///< Which part of the tensor this is.
  Dims strides;              ///< Of the box's elements in the file, in elements.
  /// If set, `offset` counts in what this range of the file unpacks to.
  std::optional<PackedRange> packed = std::nullopt;

  friend bool operator==(const Extent&, const Extent&) = default;
};

/// A tensor whose bytes lie somewhere in files, in pieces: what every reader of every format yields, and what
/// merging and range reads work on.
struct StoredTensor {
  std::string name;
  DType dtype = DType::kFloat32;
  Dims shape;
  std::vector<Extent> extents;
  /// Further places of parts that `extents` has already: replicas that every rank wrote. They should be the
  /// same, and a merge makes sure.
  std::vector<Extent> copies = {};
};

}  // namespace accel::ckpt
