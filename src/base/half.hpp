#pragma once

#include <bit>
#include <cstdint>

namespace accel {

/// Conversions between float and the bits of the 16-bit floating types. To float they are exact; from float
/// they round to nearest even. Infinities stay infinities, and NaNs stay NaNs.

inline float float_of_half(std::uint16_t half) {
  const std::uint32_t magnitude = half & 0x7fffU;
  // A subnormal counts units of 2^-24; other numbers keep their mantissa and get float's exponent.
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24F);
  const std::uint32_t normal = (magnitude << 13) + ((127U - 15U) << 23);
  const std::uint32_t special = 0x7f800000U | (magnitude << 13);
  const std::uint32_t finite = magnitude < 0x0400U ? subnormal : normal;
  const std::uint32_t bits = magnitude >= 0x7c00U ? special : finite;
  return std::bit_cast<float>(bits | (half & 0x8000U) << 16);
}

inline std::uint16_t half_of_float(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  constexpr std::uint32_t kInfinity = 0x7f800000U;
  constexpr std::uint32_t kOverflow = 0x477ff000U;     // The value 65520 rounds to infinity.
  constexpr std::uint32_t kLeastNormal = 0x38800000U;  // The least normal half, 2^-14.
  const std::uint32_t odd = (magnitude >> 13) & 1U;
  const std::uint32_t normal = (magnitude - ((127U - 15U) << 23) + 0xfffU + odd) >> 13;
  // Adding 0.5 makes the unit in the last place 2^-24, a half's least subnormal, and the hardware rounds.
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000U;
  std::uint32_t rounded = magnitude < kLeastNormal ? subnormal : normal;
  rounded = magnitude >= kOverflow ? 0x7c00U : rounded;
  rounded = magnitude > kInfinity ? 0x7e00U : rounded;
  return static_cast<std::uint16_t>(sign | rounded);
}

inline float float_of_bfloat(std::uint16_t value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

inline std::uint16_t bfloat_of_float(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const bool nan = (bits & 0x7fffffffU) > 0x7f800000U;
  return static_cast<std::uint16_t>(nan ? 0x7fc0U | (bits >> 16 & 0x8000U) : rounded);
}

}  // namespace accel
