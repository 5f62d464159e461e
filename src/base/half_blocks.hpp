#pragma once

#include <cstddef>
#include <cstdint>

namespace accel {

/// Convert `count` numbers as half.hpp converts one. The bits are the same, except that a NaN becomes quiet
/// on the way to float. They use the instructions of the processor (F16C) if it has them, which a compiler
/// does not do by itself in a build for all processors.
void floats_of_halves(const std::uint16_t* halves, float* floats, std::size_t count);
void halves_of_floats(const float* floats, std::uint16_t* halves, std::size_t count);

}  // namespace accel
