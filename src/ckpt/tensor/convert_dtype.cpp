#include "ckpt/tensor/convert_dtype.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/error.hpp"
#include "base/half.hpp"

namespace accel::ckpt {
namespace {

constexpr std::size_t kBlockElems = 4096;

// The parameters of an 8-bit type: of OCP 8-bit floating point, or its "finite, unsigned zero" variants.
struct Float8 {
  int mantissa_bits;
  int bias;
  bool infinities;     // The largest exponent is infinity and NaN, as in IEEE 754.
  bool unsigned_zero;  // 0x80 is the only NaN. Without this and without infinities, 0x7f and 0xff are.
};

float float_of_float8(std::uint8_t value, const Float8& form) {
  const int magnitude = value & 0x7f;
  const int mantissa = magnitude & ((1 << form.mantissa_bits) - 1);
  const int exponent = magnitude >> form.mantissa_bits;
  const int top = 0x7f >> form.mantissa_bits;
  const float sign = (value & 0x80) != 0 ? -1.0F : 1.0F;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  if (form.unsigned_zero && value == 0x80) return kNan;
  if (form.infinities && exponent == top) return mantissa == 0 ? sign * INFINITY : kNan;
  if (!form.infinities && !form.unsigned_zero && magnitude == 0x7f) return kNan;
  const int significand = exponent == 0 ? mantissa : mantissa + (1 << form.mantissa_bits);
  return sign *
         std::ldexp(static_cast<float>(significand), std::max(exponent, 1) - form.bias - form.mantissa_bits);
}

using Table = std::array<float, 256>;

Table table_of(const Float8& form) {
  Table table{};
  for (std::size_t i = 0; i < table.size(); ++i)
    table[i] = float_of_float8(static_cast<std::uint8_t>(i), form);
  return table;
}

// Float8E8M0: an exponent of two alone; 0xff is NaN.
Table table_of_e8m0() {
  Table table{};
  for (int i = 0; i < 255; ++i) table[static_cast<std::size_t>(i)] = std::ldexp(1.0F, i - 127);
  table[255] = std::numeric_limits<float>::quiet_NaN();
  return table;
}

const Table* table_of(DType dtype) {
  static const Table e4m3fn = table_of({3, 7, false, false});
  static const Table e5m2 = table_of({2, 15, true, false});
  static const Table e4m3fnuz = table_of({3, 8, false, true});
  static const Table e5m2fnuz = table_of({2, 16, false, true});
  static const Table e8m0fnu = table_of_e8m0();
  switch (dtype) {
    case DType::kFloat8E4M3FN:
      return &e4m3fn;
    case DType::kFloat8E5M2:
      return &e5m2;
    case DType::kFloat8E4M3FNUZ:
      return &e4m3fnuz;
    case DType::kFloat8E5M2FNUZ:
      return &e5m2fnuz;
    case DType::kFloat8E8M0FNU:
      return &e8m0fnu;
    default:
      return nullptr;
  }
}

template <class Source, class Target, class Function>
void map(std::span<const std::byte> source, std::span<std::byte> target, std::size_t count,
         Function function) {
  for (std::size_t i = 0; i < count; ++i) {
    Source in;
    std::memcpy(&in, source.data() + i * sizeof(Source), sizeof(Source));
    const Target out = function(in);
    std::memcpy(target.data() + i * sizeof(Target), &out, sizeof(Target));
  }
}

void to_float(DType from, std::span<const std::byte> source, std::span<float> target) {
  const std::span<std::byte> bytes = std::as_writable_bytes(target);
  const std::size_t count = target.size();
  if (const Table* table = table_of(from)) {
    map<std::uint8_t, float>(source, bytes, count, [&](std::uint8_t v) { return (*table)[v]; });
  } else if (from == DType::kFloat16) {
    map<std::uint16_t, float>(source, bytes, count, float_of_half);
  } else if (from == DType::kBFloat16) {
    map<std::uint16_t, float>(source, bytes, count, float_of_bfloat);
  } else if (from == DType::kFloat64) {
    map<double, float>(source, bytes, count, [](double v) { return static_cast<float>(v); });
  } else {
    std::memcpy(bytes.data(), source.data(), bytes.size());
  }
}

void from_float(std::span<const float> source, DType to, std::span<std::byte> target) {
  const std::span<const std::byte> bytes = std::as_bytes(source);
  const std::size_t count = source.size();
  if (to == DType::kFloat16) {
    map<float, std::uint16_t>(bytes, target, count, half_of_float);
  } else if (to == DType::kBFloat16) {
    map<float, std::uint16_t>(bytes, target, count, bfloat_of_float);
  } else if (to == DType::kFloat64) {
    map<float, double>(bytes, target, count, [](float v) { return static_cast<double>(v); });
  } else {
    std::memcpy(target.data(), bytes.data(), bytes.size());
  }
}

}  // namespace

bool is_floating(DType dtype) {
  return table_of(dtype) != nullptr || dtype == DType::kFloat16 || dtype == DType::kBFloat16 ||
         dtype == DType::kFloat32 || dtype == DType::kFloat64;
}

bool can_convert(DType from, DType to) {
  return from == to || (is_floating(from) && is_floating(to) && table_of(to) == nullptr);
}

void convert_dtype(DType from, std::span<const std::byte> source, DType to, std::span<std::byte> target) {
  const std::size_t from_bytes = item_bytes(from);
  const std::size_t to_bytes = item_bytes(to);
  const std::size_t count = source.size() / from_bytes;
  if (!can_convert(from, to) || source.size() != count * from_bytes || target.size() != count * to_bytes) {
    throw Error(ErrorKind::kFailure, fmt::format("{} bytes of {} cannot become {} bytes of {}", source.size(),
                                                 torch_name(from), target.size(), torch_name(to)));
  }
  if (from == to) {
    std::copy(source.begin(), source.end(), target.begin());
    return;
  }
  std::array<float, kBlockElems> block;
  for (std::size_t at = 0; at < count; at += kBlockElems) {
    const std::span<float> floats = std::span(block).first(std::min(kBlockElems, count - at));
    to_float(from, source.subspan(at * from_bytes, floats.size() * from_bytes), floats);
    from_float(floats, to, target.subspan(at * to_bytes, floats.size() * to_bytes));
  }
}

}  // namespace accel::ckpt
