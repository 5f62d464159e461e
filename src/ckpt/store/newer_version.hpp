#pragma once

#include <fmt/format.h>

#include <string_view>

#include "base/error.hpp"

namespace accel::ckpt {

/// The Error (kUsage) for a file that a newer accel wrote. It is not damaged, so that a launch must not set
/// its checkpoint aside. Callers above add its path.
inline Error newer_version(std::string_view found, int known) {
  return Error(ErrorKind::kUsage, fmt::format("is of version {}, and this accel reads {}", found, known))
      .hint("a newer accel wrote it: use that one");
}

}  // namespace accel::ckpt
