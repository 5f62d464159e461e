#include "ckpt/tensor/convert_dtype.hpp"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <class Target, class Source>
std::vector<Target> converted(DType from, const std::vector<Source>& source, DType to) {
  std::vector<Target> target(source.size());
  convert_dtype(from, std::as_bytes(std::span(source)), to, std::as_writable_bytes(std::span(target)));
  return target;
}

template <class Target, class Source>
Target converted(DType from, Source value, DType to) {
  return converted<Target>(from, std::vector<Source>{value}, to).front();
}

// A binary floating-point format by its definition. A double represents every value of these formats exactly.
struct Format {
  int exponent_bits;
  int mantissa_bits;
  int bias;

  [[nodiscard]] double value(std::uint32_t magnitude) const {
    const std::uint32_t mantissa = magnitude & ((1U << mantissa_bits) - 1);
    const int exponent = static_cast<int>(magnitude >> mantissa_bits);
    const double fraction = static_cast<double>(mantissa) / std::pow(2.0, mantissa_bits);
    return exponent == 0 ? fraction * std::pow(2.0, 1 - bias)
                         : (1 + fraction) * std::pow(2.0, exponent - bias);
  }
};

struct Wide {
  DType dtype;
  Format format;

  [[nodiscard]] std::uint16_t infinity() const {
    return static_cast<std::uint16_t>(((1U << format.exponent_bits) - 1) << format.mantissa_bits);
  }
  // Rounds to nearest, ties to even, by bisection of all values. Infinity has the place of the next finite
  // value.
  [[nodiscard]] std::uint16_t rounded(float x) const {
    const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    const double magnitude = std::abs(static_cast<double>(x));
    std::uint32_t below = 0;
    std::uint32_t above = infinity();
    if (magnitude >= format.value(above)) return static_cast<std::uint16_t>(sign | above);
    while (above - below > 1) {
      const std::uint32_t middle = (below + above) / 2;
      (format.value(middle) <= magnitude ? below : above) = middle;
    }
    const double down = magnitude - format.value(below);
    const double up = format.value(above) - magnitude;
    const bool take_above = up < down || (up == down && above % 2 == 0);
    return static_cast<std::uint16_t>(sign | (take_above ? above : below));
  }
};

const Wide kHalf{DType::kFloat16, {5, 10, 15}};
const Wide kBfloat{DType::kBFloat16, {8, 7, 127}};

class WideTest : public ::testing::TestWithParam<Wide> {};
INSTANTIATE_TEST_SUITE_P(Both, WideTest, ::testing::Values(kHalf, kBfloat));

TEST_P(WideTest, EveryValueToFloatAndBack) {
  const Wide& wide = GetParam();
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  const auto floats = converted<float>(wide.dtype, all, DType::kFloat32);
  const auto doubles = converted<double>(wide.dtype, all, DType::kFloat64);
  const auto back = converted<std::uint16_t>(DType::kFloat32, floats, wide.dtype);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::uint32_t magnitude = all[i] & 0x7fffU;
    ASSERT_EQ(std::signbit(floats[i]), i >= 0x8000) << i;
    if (magnitude > wide.infinity()) {
      ASSERT_TRUE(std::isnan(floats[i]) && std::isnan(doubles[i])) << i;
      ASSERT_GT(back[i] & 0x7fff, wide.infinity()) << i;
      continue;
    }
    const double expected = magnitude == wide.infinity() ? kInfinity : wide.format.value(magnitude);
    ASSERT_EQ(std::abs(static_cast<double>(floats[i])), expected) << i;
    ASSERT_EQ(doubles[i], static_cast<double>(floats[i])) << i;
    ASSERT_EQ(back[i], all[i]);
  }
}

// The points between two neighbours: just below the middle, the middle, and just above it.
TEST_P(WideTest, RoundsToNearestAtEveryBoundary) {
  const Wide& wide = GetParam();
  std::vector<float> floats;
  for (std::uint32_t i = 0; i < wide.infinity(); ++i) {
    const auto middle = static_cast<float>((wide.format.value(i) + wide.format.value(i + 1)) / 2);
    for (const float x : {std::nextafter(middle, 0.0F), middle, std::nextafter(middle, kInfinity)}) {
      floats.insert(floats.end(), {x, -x});
    }
  }
  const auto found = converted<std::uint16_t>(DType::kFloat32, floats, wide.dtype);
  for (std::size_t i = 0; i < floats.size(); ++i) {
    ASSERT_EQ(found[i], wide.rounded(floats[i])) << std::hexfloat << floats[i];
  }
}

TEST_P(WideTest, Extremes) {
  const Wide& wide = GetParam();
  const auto to = [&](float x) { return converted<std::uint16_t>(DType::kFloat32, x, wide.dtype); };
  EXPECT_EQ(to(0.0F), 0);
  EXPECT_EQ(to(-0.0F), 0x8000);
  EXPECT_EQ(to(kInfinity), wide.infinity());
  EXPECT_EQ(to(-kInfinity), wide.infinity() | 0x8000);
  EXPECT_EQ(to(std::numeric_limits<float>::max()), wide.infinity());
  EXPECT_EQ(to(std::numeric_limits<float>::denorm_min()), 0);
  for (const std::uint32_t nan :
       {0x7fc00000U, 0xffc00000U, 0x7f800001U, 0xff800001U, 0x7fffffffU, 0xffffffffU}) {
    EXPECT_GT(to(std::bit_cast<float>(nan)) & 0x7fff, wide.infinity()) << std::hex << nan;
  }
}

RC_GTEST_PROP(ConvertDtypePropertyTest, AnyFloatRoundsToNearest, (std::uint32_t bits)) {
  const auto x = std::bit_cast<float>(bits);
  for (const Wide& wide : {kHalf, kBfloat}) {
    const auto found = converted<std::uint16_t>(DType::kFloat32, x, wide.dtype);
    if (std::isnan(x)) {
      RC_ASSERT((found & 0x7fff) > wide.infinity());
    } else {
      RC_ASSERT(found == wide.rounded(x));
    }
  }
}

struct Narrow {
  DType dtype;
  Format format;
  std::vector<int> nans;
  std::vector<int> infinities;
  double largest;
  double smallest;
};

class NarrowTest : public ::testing::TestWithParam<Narrow> {};
// The table of the OCP specification of 8-bit floating point, and of the fnuz variants.
INSTANTIATE_TEST_SUITE_P(
    All, NarrowTest,
    ::testing::Values(Narrow{DType::kFloat8E4M3FN, {4, 3, 7}, {0x7f, 0xff}, {}, 448, 0x1p-9},
                      Narrow{DType::kFloat8E5M2,
                             {5, 2, 15},
                             {0x7d, 0x7e, 0x7f, 0xfd, 0xfe, 0xff},
                             {0x7c, 0xfc},
                             57344,
                             0x1p-16},
                      Narrow{DType::kFloat8E4M3FNUZ, {4, 3, 8}, {0x80}, {}, 240, 0x1p-10},
                      Narrow{DType::kFloat8E5M2FNUZ, {5, 2, 16}, {0x80}, {}, 57344, 0x1p-17}));

TEST_P(NarrowTest, EveryValue) {
  const Narrow& narrow = GetParam();
  std::vector<std::uint8_t> all(256);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint8_t>(i);
  const auto floats = converted<float>(narrow.dtype, all, DType::kFloat32);
  double largest = 0;
  double smallest = kInfinity;
  for (int i = 0; i < 256; ++i) {
    const float found = floats[static_cast<std::size_t>(i)];
    if (std::find(narrow.nans.begin(), narrow.nans.end(), i) != narrow.nans.end()) {
      EXPECT_TRUE(std::isnan(found)) << i;
      continue;
    }
    const bool infinite =
        std::find(narrow.infinities.begin(), narrow.infinities.end(), i) != narrow.infinities.end();
    const double magnitude =
        infinite ? kInfinity : narrow.format.value(static_cast<std::uint32_t>(i) & 0x7fU);
    EXPECT_EQ(std::abs(found), magnitude) << i;
    EXPECT_EQ(std::signbit(found), i >= 128) << i;
    if (!infinite) largest = std::max(largest, magnitude);
    if (magnitude > 0) smallest = std::min(smallest, magnitude);
  }
  EXPECT_EQ(largest, narrow.largest);
  EXPECT_EQ(smallest, narrow.smallest);
}

TEST(ConvertDtypeTest, E8M0IsPowersOfTwo) {
  for (int i = 0; i < 255; ++i) {
    const auto found = converted<float>(DType::kFloat8E8M0FNU, static_cast<std::uint8_t>(i), DType::kFloat32);
    EXPECT_EQ(static_cast<double>(found), std::pow(2.0, i - 127)) << i;
  }
  EXPECT_TRUE(std::isnan(converted<float>(DType::kFloat8E8M0FNU, std::uint8_t{255}, DType::kFloat32)));
}

TEST(ConvertDtypeTest, DoublesGoThroughFloat) {
  // A float away from a tie of halves; rounded at once it would be the next half.
  EXPECT_EQ(converted<std::uint16_t>(DType::kFloat64, 1 + 0x1p-11 + 0x1p-40, DType::kFloat16), 0x3c00);
  EXPECT_EQ(converted<std::uint16_t>(DType::kFloat64, 1 + 0x1p-11 + 0x1p-22, DType::kFloat16), 0x3c01);
  EXPECT_EQ(converted<std::uint16_t>(DType::kFloat64, -1e300, DType::kFloat16), 0xfc00);
  EXPECT_EQ(converted<std::uint16_t>(DType::kFloat64, 1e-300, DType::kBFloat16), 0);
  EXPECT_EQ(converted<float>(DType::kFloat64, 0.1, DType::kFloat32), 0.1F);
  EXPECT_EQ(converted<double>(DType::kFloat32, 0.1F, DType::kFloat64), static_cast<double>(0.1F));
}

TEST(ConvertDtypeTest, BetweenTheNarrowOnes) {
  EXPECT_EQ(converted<std::uint16_t>(DType::kBFloat16, std::uint16_t{0x3f80}, DType::kFloat16), 0x3c00);
  EXPECT_EQ(converted<std::uint16_t>(DType::kBFloat16, std::uint16_t{0x4780}, DType::kFloat16), 0x7c00);
  EXPECT_EQ(converted<std::uint16_t>(DType::kFloat8E4M3FN, std::uint8_t{0x7e}, DType::kFloat16), 0x5f00);
}

// More than one block, and bytes at odd addresses.
RC_GTEST_PROP(ConvertDtypePropertyTest, ManyAreConvertedAsOne, ()) {
  const auto count = *rc::gen::element<std::size_t>(0, 1, 4095, 4096, 4097, 9000);
  const DType from = *rc::gen::element(DType::kFloat8E5M2, DType::kFloat16, DType::kFloat32, DType::kFloat64);
  const DType to = *rc::gen::element(DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64);
  const std::string data =
      testing::pattern(count * item_bytes(from) + 1, *rc::gen::arbitrary<std::uint32_t>());
  std::string found(count * item_bytes(to) + 1, '?');
  const auto source = testing::bytes_of(data).subspan(1);
  convert_dtype(from, source, to, std::as_writable_bytes(std::span(found)).subspan(1));
  for (std::size_t i = 0; i < count; ++i) {
    std::string one(item_bytes(to), '?');
    convert_dtype(from, source.subspan(i * item_bytes(from), item_bytes(from)), to,
                  std::as_writable_bytes(std::span(one)));
    RC_ASSERT(found.substr(1 + i * one.size(), one.size()) == one);
  }
  RC_ASSERT(found[0] == '?');
}

TEST(ConvertDtypeTest, WhatCanBeConverted) {
  for (const DTypeInfo& from : all_dtypes()) {
    for (const DTypeInfo& to : all_dtypes()) {
      const bool wide = to.dtype == DType::kFloat16 || to.dtype == DType::kBFloat16 ||
                        to.dtype == DType::kFloat32 || to.dtype == DType::kFloat64;
      const bool floating = !is_opaque(from.dtype) &&
                            (from.torch_name.starts_with("float") || from.torch_name.starts_with("bfloat"));
      EXPECT_EQ(is_floating(from.dtype), floating) << from.torch_name;
      const bool can = from.dtype == to.dtype || (floating && wide);
      EXPECT_EQ(can_convert(from.dtype, to.dtype), can) << from.torch_name << " to " << to.torch_name;
      const std::vector<std::byte> source(from.item_bytes * 3);
      std::vector<std::byte> target(to.item_bytes * 3);
      const auto convert = [&] { convert_dtype(from.dtype, source, to.dtype, target); };
      if (can) {
        EXPECT_NO_THROW(convert());
      } else {
        EXPECT_THAT(error_of(ErrorKind::kFailure, convert), HasSubstr("cannot become"));
      }
    }
  }
}

TEST(ConvertDtypeTest, TheSameTypeIsCopiedWithItsNanPayload) {
  EXPECT_EQ(converted<std::uint32_t>(DType::kFloat32, std::uint32_t{0xff800001}, DType::kFloat32),
            0xff800001);
  EXPECT_EQ(converted<std::uint16_t>(DType::kFloat16, std::uint16_t{0x7c01}, DType::kFloat16), 0x7c01);
}

TEST(ConvertDtypeTest, RejectsSizesThatDoNotMatch) {
  std::vector<std::byte> target(4);
  for (const std::size_t bytes : {0, 1, 3, 5, 6}) {
    const std::vector<std::byte> source(bytes);
    (void)error_of(ErrorKind::kFailure,
                   [&] { convert_dtype(DType::kFloat16, source, DType::kFloat16, target); });
    (void)error_of(ErrorKind::kFailure, [&] {
      convert_dtype(DType::kFloat16, source, DType::kFloat32, std::span(target).first(bytes == 3 ? 4 : 3));
    });
  }
}

}  // namespace
}  // namespace accel::ckpt
