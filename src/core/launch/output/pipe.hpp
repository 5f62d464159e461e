#pragma once

#include "base/files/fd.hpp"

namespace accel::launch {

/// Both ends of a pipe, close-on-exec.
struct Pipe {
  Fd read;
  Fd write;
};
Pipe make_pipe();

}  // namespace accel::launch
