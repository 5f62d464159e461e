#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/box.hpp"
#include "ckpt/dtype.hpp"

namespace accel::ckpt {

/// Where one box of a tensor lies in a file.
struct Extent {
  std::string file;          ///< Relative to the checkpoint's directory.
  std::uint64_t offset = 0;  ///< Byte offset, in the file, of the box's first element.
  Box box;                   ///< Which part of the tensor this is.
  Dims strides;              ///< Of the box's elements in the file, in elements.
};

/// A tensor whose bytes lie somewhere in files, in pieces: what every reader of every format yields, and what
/// merging and range reads work on.
struct StoredTensor {
  std::string name;
  DType dtype = DType::kFloat32;
  Dims shape;
  std::vector<Extent> extents;
};

}  // namespace accel::ckpt
