#include "plan/layout/numpy_random.hpp"

#include <gmock/gmock.h>

#include <vector>

namespace accel {
namespace {

using ::testing::ElementsAre;

std::vector<std::uint32_t> drawn(std::uint32_t seed, std::uint32_t below) {
  NumpyRandom random(seed);
  std::vector<std::uint32_t> values;
  for (int i = 0; i < 6; ++i) values.push_back(random.randint(below));
  return values;
}

// What numpy 2 draws.
TEST(NumpyRandomTest, DrawsWhatRandomStateDraws) {
  EXPECT_THAT(drawn(0, 1'000'000'000),
              ElementsAre(209652396, 398764591, 924231285, 404868288, 441365315, 463622907));
  EXPECT_THAT(drawn(1, 1'000'000'000),
              ElementsAre(717354021, 946286476, 784077896, 491263, 550290313, 224766667));
  EXPECT_THAT(drawn(4294967295, 1'000'000'000),
              ElementsAre(419326371, 479346978, 697429004, 269265991, 167655348, 113049152));
  EXPECT_THAT(drawn(0, 600), ElementsAre(559, 192, 359, 9, 277, 599));
  EXPECT_THAT(drawn(0, 2), ElementsAre(0, 1, 1, 0, 1, 1));
  EXPECT_THAT(drawn(7, 1), ElementsAre(0, 0, 0, 0, 0, 0));
}

}  // namespace
}  // namespace accel
