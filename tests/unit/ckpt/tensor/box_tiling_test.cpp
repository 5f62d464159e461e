#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "ckpt/tensor/box.hpp"
#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

// A grid of n x m boxes of 3 x 2 elements, shuffled.
std::vector<Box> grid(std::int64_t rows, std::int64_t columns) {
  std::vector<Box> boxes;
  for (std::int64_t c = 0; c < columns; ++c) {
    for (std::int64_t r = 0; r < rows; ++r) {
      boxes.push_back({{3 * ((r * 7) % rows), 2 * c}, {3, 2}});
    }
  }
  return boxes;
}

// Four boxes around a fifth: no plane passes between any two groups of them.
std::vector<Box> pinwheel(std::int64_t row, std::int64_t column) {
  return {{{row, column}, {1, 2}},
          {{row, column + 2}, {2, 1}},
          {{row + 1, column}, {2, 1}},
          {{row + 1, column + 1}, {1, 1}},
          {{row + 2, column + 1}, {1, 2}}};
}

// The check of check_disjoint for every pair of boxes.
bool any_overlap(const std::vector<Box>& boxes) {
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (intersect(boxes[i], boxes[j])) return true;
    }
  }
  return false;
}

RC_GTEST_PROP(BoxTilingPropertyTest, FindsExactlyTheOverlapsThatThereAre, ()) {
  const auto dims = *rc::gen::inRange<std::size_t>(1, 4);
  const auto side = *rc::gen::inRange<std::int64_t>(2, 12);
  std::vector<Box> boxes;
  const auto count = *rc::gen::inRange<std::size_t>(0, 40);
  for (std::size_t i = 0; i < count; ++i) {
    Box box;
    for (std::size_t d = 0; d < dims; ++d) {
      box.offsets.push_back(*rc::gen::inRange<std::int64_t>(0, side));
      box.sizes.push_back(*rc::gen::inRange<std::int64_t>(0, 4));
    }
    // Most boxes do not overlap, so that not only the first pair decides.
    boxes.push_back(box);
    if (*rc::gen::inRange(0, 20) != 0 && any_overlap(boxes)) boxes.pop_back();
  }
  if (any_overlap(boxes)) {
    RC_ASSERT_THROWS_AS(check_disjoint(boxes), Error);
  } else {
    check_disjoint(boxes);
  }
}

TEST(BoxTilingTest, AGridOfHundredThousandIsQuick) {
  std::vector<Box> boxes = grid(300, 400);
  check_tiling(boxes, {900, 800});
  boxes[77].offsets[0] += 1;
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { check_disjoint(boxes); }), HasSubstr(to_string(boxes[77])));
}

TEST(BoxTilingTest, SlicesOfAnyDimensionAreQuick) {
  std::vector<Box> boxes;
  for (std::int64_t i = 0; i < 100'000; ++i) boxes.push_back({{0, i, 0}, {4, 1, 9}});
  check_tiling(boxes, {4, 100'000, 9});
  boxes.push_back({{3, 5, 8}, {1, 1, 1}});
  EXPECT_THROW(check_disjoint(boxes), Error);
}

TEST(BoxTilingTest, PinwheelsAreTold) {
  check_tiling(pinwheel(0, 0), {3, 3});
  std::vector<Box> many;
  for (std::int64_t row = 0; row < 20; ++row) {
    for (std::int64_t column = 0; column < 20; ++column) {
      for (Box& box : pinwheel(3 * row, 3 * column)) many.push_back(std::move(box));
    }
  }
  check_tiling(many, {60, 60});
  many[1003].sizes[1] += 1;
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { check_disjoint(many); }), HasSubstr(to_string(many[1003])));
}

TEST(BoxTilingTest, BoxesWithinEachOtherAreRefusedAtOnce) {
  std::vector<Box> boxes;
  for (std::int64_t i = 0; i < 50'000; ++i) boxes.push_back({{i, i}, {200'000 - 2 * i, 200'000 - 2 * i}});
  EXPECT_THROW(check_disjoint(boxes), Error);
}

TEST(BoxTilingTest, IrregularBoxesByTheHundredThousandAreRefused) {
  // Each round separates only one box: a row, then a column, and so on. This takes quadratic time.
  std::vector<Box> boxes;
  constexpr std::int64_t kSide = 60'000;
  for (std::int64_t i = 0; i < kSide; ++i) {
    boxes.push_back({{i, i}, {1, kSide - i}});
    if (i + 1 < kSide) boxes.push_back({{i + 1, i}, {kSide - i - 1, 1}});
  }
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { check_disjoint(boxes); }), HasSubstr("too irregularly"));
  boxes.resize(2000);
  check_disjoint(boxes);
}

TEST(BoxTilingTest, HolesAndBoxesOutsideAreToldApart) {
  EXPECT_THAT(error_of(ErrorKind::kCorrupt,
                       [] {
                         check_tiling(std::vector<Box>{{{0}, {3}}}, {4});
                       }),
              HasSubstr("cover 3 of 4"));
  EXPECT_THAT(error_of(ErrorKind::kCorrupt,
                       [] {
                         check_tiling(std::vector<Box>{{{2}, {3}}}, {4});
                       }),
              HasSubstr("does not lie within"));
}

}  // namespace
}  // namespace accel::ckpt
