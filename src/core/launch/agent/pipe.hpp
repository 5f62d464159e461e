#pragma once

#include "base/fd.hpp"

namespace accel::core {

/// Both ends of a pipe, close-on-exec.
struct Pipe {
  Fd read;
  Fd write;
};
Pipe make_pipe();

}  // namespace accel::core
