#pragma once

#include <cstddef>

namespace accel {

/// How many file descriptors this process has open.
[[nodiscard]] std::size_t open_descriptors();

/// Makes room for `count` more descriptors: raises the soft limit of this process, as far as the hard one
/// allows. Returns how many more there can be now. Programs that this process starts inherit the limit.
std::size_t allow_descriptors(std::size_t count);

}  // namespace accel
