#pragma once

#include <cstddef>
#include <cstdint>

namespace accel {

/// `count` numbers at a time as half.hpp converts one, with the same bits but for NaNs on the way to float,
/// which are quiet afterwards: with the processor's own conversions where it has them (F16C), which compilers
/// do not use by themselves in a build for all processors.
void floats_of_halves(const std::uint16_t* halves, float* floats, std::size_t count);
void halves_of_floats(const float* floats, std::uint16_t* halves, std::size_t count);

}  // namespace accel
