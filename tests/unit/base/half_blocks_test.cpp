#include "base/half_blocks.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "base/half.hpp"

namespace accel {
namespace {

TEST(HalfBlocksTest, EveryHalfAsOneByOneInBlocksOfAnyLength) {
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  for (const std::size_t skipped : {0U, 3U}) {
    const std::size_t count = halves.size() - skipped;
    std::vector<float> floats(count);
    floats_of_halves(halves.data() + skipped, floats.data(), count);
    std::vector<std::uint16_t> back(count);
    halves_of_floats(floats.data(), back.data(), count);
    for (std::size_t i = 0; i < count; ++i) {
      const float expected = float_of_half(halves[i + skipped]);
      ASSERT_EQ(std::isnan(floats[i]), std::isnan(expected));
      ASSERT_EQ(std::signbit(floats[i]), std::signbit(expected));
      ASSERT_TRUE(std::isnan(expected) || floats[i] == expected);
      ASSERT_EQ(back[i], half_of_float(expected)) << halves[i + skipped];
    }
  }
}

TEST(HalfBlocksTest, FloatsAroundEveryHalfAreRoundedAsOneByOne) {
  // The halves, the ties between neighbours, and the floats on both sides of each; with infinities and NaNs.
  std::vector<float> floats;
  for (std::uint32_t half = 0; half < 65536; ++half) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(float_of_half(static_cast<std::uint16_t>(half)));
    for (const std::uint32_t offset : {0U, 1U, 0xfffU, 0x1000U, 0x1001U, 0x1fffU})
      floats.push_back(std::bit_cast<float>(bits + offset));
  }
  // Between the subnormals ties are further apart, and below the least of them.
  for (int units = -4097; units <= 4097; ++units)
    for (const float of_unit : {0.25F, 0.499F, 0.5F, 0.501F})
      floats.push_back((static_cast<float>(units) + of_unit) * 0x1p-24F);
  std::vector<std::uint16_t> halves(floats.size());
  halves_of_floats(floats.data(), halves.data(), floats.size());
  for (std::size_t i = 0; i < floats.size(); ++i) ASSERT_EQ(halves[i], half_of_float(floats[i])) << floats[i];
}

}  // namespace
}  // namespace accel
