#include "ckpt/tensor/box.hpp"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

Dims any_shape() {
  return *rc::gen::resize(4, rc::gen::container<Dims>(rc::gen::inRange<std::int64_t>(1, 6)));
}

TEST(BoxTest, RangeWithinARowIsOneBox) {
  EXPECT_THAT(boxes_of_range({4, 5}, 6, 9), ElementsAre(Box{{1, 1}, {1, 3}}));
}

TEST(BoxTest, RangeOverRowsIsPartWholePart) {
  EXPECT_THAT(boxes_of_range({4, 5}, 3, 17),
              ElementsAre(Box{{0, 3}, {1, 2}}, Box{{1, 0}, {2, 5}}, Box{{3, 0}, {1, 2}}));
}

TEST(BoxTest, WholeRowsAreOneBox) {
  EXPECT_THAT(boxes_of_range({4, 5}, 5, 15), ElementsAre(Box{{1, 0}, {2, 5}}));
}

TEST(BoxTest, EmptyRangeIsNoBox) {
  EXPECT_TRUE(boxes_of_range({4, 5}, 7, 7).empty());
  EXPECT_TRUE(boxes_of_range({0, 5}, 0, 0).empty());
  EXPECT_TRUE(boxes_of_range({}, 1, 1).empty());
}

TEST(BoxTest, ZeroDimensionalTensorHasOneElement) {
  EXPECT_THAT(boxes_of_range({}, 0, 1), ElementsAre(Box{{}, {}}));
  EXPECT_EQ(Box::whole({}).numel(), 1);
}

TEST(BoxTest, RejectsARangeBeyondTheTensor) {
  EXPECT_THAT(error_of(ErrorKind::kCorrupt,
                       [] {
                         (void)boxes_of_range({2, 3}, 0, 7);
                       }),
              HasSubstr("[2, 3] has 6"));
  EXPECT_THROW((void)boxes_of_range({2, 3}, -1, 2), Error);
  EXPECT_THROW((void)boxes_of_range({2, 3}, 4, 2), Error);
}

TEST(BoxTest, RejectsAShapeThatOverflows) {
  EXPECT_THROW((void)boxes_of_range({std::int64_t{1} << 40, std::int64_t{1} << 40}, 0, 1), Error);
  EXPECT_THROW((void)boxes_of_range({-1}, 0, 0), Error);
}

RC_GTEST_PROP(BoxPropertyTest, BoxesOfARangeAreTheRangeInOrder, ()) {
  const Dims shape = any_shape();
  const std::int64_t numel = checked_numel(shape);
  const auto begin = *rc::gen::inRange<std::int64_t>(0, numel + 1);
  const auto end = *rc::gen::inRange<std::int64_t>(begin, numel + 1);
  const std::vector<Box> boxes = boxes_of_range(shape, begin, end);
  RC_ASSERT(boxes.size() <= 2 * std::max<std::size_t>(shape.size(), 1) - 1);
  std::int64_t next = begin;
  for (const Box& box : boxes) {
    check_within(box, shape);
    RC_ASSERT(flat_index(shape, box.offsets) == next);
    next += box.numel();
  }
  RC_ASSERT(next == end);
  check_disjoint(boxes);
}

RC_GTEST_PROP(BoxPropertyTest, SplitsOfAnyWorldSizeTile, ()) {
  const Dims shape = any_shape();
  const std::int64_t numel = checked_numel(shape);
  const auto world = *rc::gen::inRange<std::int64_t>(1, 9);
  std::vector<Box> boxes;
  for (std::int64_t r = 0; r < world; ++r) {
    for (Box& box : boxes_of_range(shape, numel * r / world, numel * (r + 1) / world))
      boxes.push_back(std::move(box));
  }
  check_tiling(boxes, shape);
  // Without any one of the boxes there is a hole, and with any one of them twice an overlap.
  const auto victim = *rc::gen::inRange<std::size_t>(0, boxes.size());
  std::vector<Box> twice = boxes;
  twice.push_back(boxes[victim]);
  RC_ASSERT_THROWS_AS(check_tiling(twice, shape), Error);
  boxes.erase(boxes.begin() + static_cast<std::ptrdiff_t>(victim));
  RC_ASSERT_THROWS_AS(check_tiling(boxes, shape), Error);
}

TEST(BoxTest, IntersectionIsWhatBothHave) {
  EXPECT_EQ(intersect({{0, 0}, {2, 3}}, {{1, 1}, {4, 4}}), (Box{{1, 1}, {1, 2}}));
  EXPECT_EQ(intersect({{0, 0}, {2, 3}}, {{2, 0}, {1, 3}}), std::nullopt);
  EXPECT_EQ(intersect({{}, {}}, {{}, {}}), (Box{{}, {}}));
}

TEST(BoxTest, RejectsABoxOutsideItsTensor) {
  EXPECT_NO_THROW(check_within(Box{{2, 0}, {0, 3}}, Dims{2, 3}));  // An empty shard at the end.
  for (const Box& box : {Box{{0}, {3}}, Box{{0, 0}, {3, 3}}, Box{{-1, 0}, {1, 1}}, Box{{1, 1}, {1, -1}},
                         Box{{3, 0}, {0, 1}}, Box{{1, 0}, {INT64_MAX, 1}}, Box{{0, 0}, {1}}}) {
    EXPECT_THROW(check_within(box, Dims{2, 3}), Error) << to_string(box.offsets) << to_string(box.sizes);
  }
}

TEST(BoxTest, OverlapNamesBoth) {
  const std::vector<Box> boxes{{{0, 0}, {2, 2}}, {{0, 2}, {2, 1}}, {{1, 1}, {1, 2}}};
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { check_disjoint(boxes); }),
              HasSubstr("[0:2, 0:2] and [1:2, 1:3]"));
}

TEST(BoxTest, TwoScalarsOverlap) {
  EXPECT_THROW(check_disjoint(std::vector<Box>{{{}, {}}, {{}, {}}}), Error);
}

TEST(BoxTest, AHoleSaysHowMuchIsThere) {
  const std::vector<Box> boxes{{{0}, {2}}, {{3}, {1}}};
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { check_tiling(boxes, {4}); }), HasSubstr("cover 3 of 4"));
}

}  // namespace
}  // namespace accel::ckpt
