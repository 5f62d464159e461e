#include "ranks/reduce.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include "base/half.hpp"
#include "base/half_blocks.hpp"

namespace accel {
namespace {

/// The elements that are reduced at a time. They stay in the first-level cache, and their number is a
/// constant, so that the compiler vectorizes the loops.
constexpr std::size_t kBlock = 512;

// A stored type T, whose values are added up in type S.
template <class T, class S = T>
struct Plain {
  using Stored = T;
  using Sum = S;
  static Sum load(T value) { return static_cast<Sum>(value); }
  static T store(Sum value) { return static_cast<T>(value); }
};
struct BFloat16 {
  using Stored = std::uint16_t;
  using Sum = float;
  static Sum load(Stored value) { return float_of_bfloat(value); }
  static Stored store(Sum value) { return bfloat_of_float(value); }
};
/// float16 is converted a block at a time, because no compiler vectorizes the conversion.
struct Float16 {
  using Stored = std::uint16_t;
  using Sum = float;
};

// Integers are added without sign, where overflow wraps and is defined.
template <class T>
T add(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<Unsigned>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b)));
  } else {
    return a + b;
  }
}

template <class T>
bool is_nan(T value) {
  if constexpr (std::is_floating_point_v<T>)
    return std::isnan(value);
  else
    return false;
}

// If a is NaN it is returned; if b is NaN the comparison is false and b is returned.
template <class T>
T greater(T a, T b) {
  return a >= b || is_nan(a) ? a : b;
}
template <class T>
T less(T a, T b) {
  return a <= b || is_nan(a) ? a : b;
}

/// Calls body(0) to body(count - 1).
template <class Body>
void each_of(std::size_t count, Body body) {
  if (count == kBlock) {
    for (std::size_t i = 0; i < kBlock; ++i) body(i);
  } else {
    for (std::size_t i = 0; i < count; ++i) body(i);
  }
}

template <class Type>
void reduce_block(Reduction reduction, std::span<const std::byte* const> sources, std::size_t first,
                  typename Type::Stored* out, std::size_t count) {
  using Stored = typename Type::Stored;
  using Sum = typename Type::Sum;
  constexpr bool kByBlocks = std::is_same_v<Type, Float16>;
  std::array<Sum, kBlock> sums;
  const auto values_of = [&](std::size_t source) {
    return reinterpret_cast<const Stored*>(sources[source]) + first;
  };
  const auto take = [&](auto combine) {
    const Stored* one = values_of(0);
    if constexpr (kByBlocks) {
      floats_of_halves(one, sums.data(), count);
      std::array<float, kBlock> others;
      for (std::size_t source = 1; source < sources.size(); ++source) {
        floats_of_halves(values_of(source), others.data(), count);
        each_of(count, [&](std::size_t i) { sums[i] = combine(sums[i], others[i]); });
      }
    } else {
      if (sources.size() == 1) return each_of(count, [&](std::size_t i) { sums[i] = Type::load(one[i]); });
      const Stored* other = values_of(1);
      each_of(count, [&](std::size_t i) { sums[i] = combine(Type::load(one[i]), Type::load(other[i])); });
      for (std::size_t source = 2; source < sources.size(); ++source) {
        other = values_of(source);
        each_of(count, [&](std::size_t i) { sums[i] = combine(sums[i], Type::load(other[i])); });
      }
    }
  };
  switch (reduction) {
    case Reduction::kSum:
    case Reduction::kMean:
      take([](Sum a, Sum b) { return add(a, b); });
      break;
    case Reduction::kMax:
      take([](Sum a, Sum b) { return greater(a, b); });
      break;
    case Reduction::kMin:
      take([](Sum a, Sum b) { return less(a, b); });
      break;
  }
  if constexpr (std::is_floating_point_v<Sum>) {
    const auto ranks = static_cast<Sum>(sources.size());
    if (reduction == Reduction::kMean) each_of(count, [&](std::size_t i) { sums[i] /= ranks; });
  }
  if constexpr (kByBlocks) {
    halves_of_floats(sums.data(), out, count);
  } else {
    each_of(count, [&](std::size_t i) { out[i] = Type::store(sums[i]); });
  }
}

template <class Type>
void reduce_all(Reduction reduction, std::span<const std::byte* const> sources, std::byte* out,
                std::size_t elements) {
  for (std::size_t first = 0; first < elements; first += kBlock) {
    reduce_block<Type>(reduction, sources, first, reinterpret_cast<typename Type::Stored*>(out) + first,
                       std::min(kBlock, elements - first));
  }
}

}  // namespace

std::size_t bytes_of(Element element) {
  switch (element) {
    case Element::kFloat64:
    case Element::kInt64:
      return 8;
    case Element::kFloat32:
    case Element::kInt32:
      return 4;
    case Element::kBFloat16:
    case Element::kFloat16:
    case Element::kInt16:
      return 2;
    case Element::kInt8:
    case Element::kUInt8:
      return 1;
  }
  return 0;
}

bool can_reduce(Element element, Reduction reduction) {
  switch (element) {
    case Element::kFloat32:
    case Element::kFloat64:
    case Element::kBFloat16:
    case Element::kFloat16:
      return true;
    default:
      return reduction != Reduction::kMean;
  }
}

void reduce_in_order(Element element, Reduction reduction, std::span<const std::byte* const> sources,
                     std::byte* out, std::size_t elements) {
  switch (element) {
    case Element::kFloat32:
      return reduce_all<Plain<float>>(reduction, sources, out, elements);
    case Element::kFloat64:
      return reduce_all<Plain<double>>(reduction, sources, out, elements);
    case Element::kBFloat16:
      return reduce_all<BFloat16>(reduction, sources, out, elements);
    case Element::kFloat16:
      return reduce_all<Float16>(reduction, sources, out, elements);
    case Element::kInt64:
      return reduce_all<Plain<std::int64_t>>(reduction, sources, out, elements);
    case Element::kInt32:
      return reduce_all<Plain<std::int32_t>>(reduction, sources, out, elements);
    case Element::kInt16:
      return reduce_all<Plain<std::int16_t>>(reduction, sources, out, elements);
    case Element::kInt8:
      return reduce_all<Plain<std::int8_t>>(reduction, sources, out, elements);
    case Element::kUInt8:
      return reduce_all<Plain<std::uint8_t>>(reduction, sources, out, elements);
  }
}

}  // namespace accel
