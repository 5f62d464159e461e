#include "ckpt/io/crc32.hpp"

#include <libdeflate.h>

namespace accel::ckpt {
namespace {

constexpr std::uint32_t kPolynomial = 0xedb88320U;  // The polynomial is reflected: bit 31 is x^0.

// a * b modulo the polynomial, over GF(2).
std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (std::uint32_t bit = 0x80000000U; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b & 1) != 0 ? (b >> 1) ^ kPolynomial : b >> 1;
  }
  return product;
}

// x^(8 * bytes) modulo the polynomial, by squaring.
std::uint32_t shift_of(std::uint64_t bytes) {
  std::uint32_t result = 0x80000000U;  // 1
  std::uint32_t power = 0x00800000U;   // x^8
  for (; bytes != 0; bytes >>= 1) {
    if ((bytes & 1) != 0) result = multiply(result, power);
    power = multiply(power, power);
  }
  return result;
}

}  // namespace

std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t seed) {
  return bytes.empty() ? seed : libdeflate_crc32(seed, bytes.data(), bytes.size());
}

std::uint32_t crc32_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t length_b) {
  return multiply(crc_a, shift_of(length_b)) ^ crc_b;
}

}  // namespace accel::ckpt
