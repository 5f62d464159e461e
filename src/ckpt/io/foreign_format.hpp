#pragma once

#include <optional>
#include <string>

#include "base/files/file.hpp"

namespace accel::ckpt {

/// A file of another program, or one that only stands for a checkpoint.
struct ForeignFormat {
  std::string what;    ///< What follows the name of the file, such as "is a pointer of Git LFS".
  std::string advice;  ///< How to come to a file that can be read.
};

/// Recognizes a file by its first bytes. Nothing if they are not those of a format that is known here.
[[nodiscard]] std::optional<ForeignFormat> foreign_format(const File& file);

/// Throws the Error (kCorrupt) for a file that is recognized.
void refuse_foreign_format(const File& file);

}  // namespace accel::ckpt
