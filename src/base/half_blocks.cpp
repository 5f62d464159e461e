#include "base/half_blocks.hpp"

#include "base/half.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace accel {
namespace {

#if defined(__x86_64__)

constexpr std::size_t kWidth = 8;

// clang 14 does not know __builtin_cpu_supports("f16c"). The check for avx2 also says that the operating
// system saves the registers.
bool has_f16c() {
  static const bool has = [] {
    unsigned eax = 0;
    unsigned ebx = 0;
    unsigned ecx = 0;
    unsigned edx = 0;
    return __builtin_cpu_supports("avx2") != 0 && __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 &&
           (ecx & bit_F16C) != 0;
  }();
  return has;
}

/// Returns how many it has converted: all but fewer than kWidth.
__attribute__((target("avx2,f16c"))) std::size_t widen(const std::uint16_t* halves, float* floats,
                                                       std::size_t count) {
  std::size_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    const __m128i eight = _mm_loadu_si128(reinterpret_cast<const __m128i*>(halves + i));
    _mm256_storeu_ps(floats + i, _mm256_cvtph_ps(eight));
  }
  return i;
}

// The instruction keeps the payload of a NaN; half.hpp gives every NaN the same.
__attribute__((target("avx2,f16c"))) std::size_t narrow(const float* floats, std::uint16_t* halves,
                                                        std::size_t count) {
  const __m128i magnitude = _mm_set1_epi16(0x7fff);
  const __m128i infinity = _mm_set1_epi16(0x7c00);
  const __m128i nan = _mm_set1_epi16(0x7e00);
  std::size_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    const __m128i eight = _mm256_cvtps_ph(_mm256_loadu_ps(floats + i), _MM_FROUND_TO_NEAREST_INT);
    const __m128i is_nan = _mm_cmpgt_epi16(_mm_and_si128(eight, magnitude), infinity);
    const __m128i quiet = _mm_or_si128(_mm_andnot_si128(magnitude, eight), nan);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(halves + i), _mm_blendv_epi8(eight, quiet, is_nan));
  }
  return i;
}

#else

bool has_f16c() { return false; }
std::size_t widen(const std::uint16_t*, float*, std::size_t) { return 0; }
std::size_t narrow(const float*, std::uint16_t*, std::size_t) { return 0; }

#endif

}  // namespace

void floats_of_halves(const std::uint16_t* halves, float* floats, std::size_t count) {
  for (std::size_t i = has_f16c() ? widen(halves, floats, count) : 0; i < count; ++i)
    floats[i] = float_of_half(halves[i]);
}

void halves_of_floats(const float* floats, std::uint16_t* halves, std::size_t count) {
  for (std::size_t i = has_f16c() ? narrow(floats, halves, count) : 0; i < count; ++i)
    halves[i] = half_of_float(floats[i]);
}

}  // namespace accel
