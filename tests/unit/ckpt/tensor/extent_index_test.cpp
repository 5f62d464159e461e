#include "ckpt/tensor/extent_index.hpp"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

std::vector<Extent> extents_of(const std::vector<Box>& boxes) {
  std::vector<Extent> extents;
  for (const Box& box : boxes) extents.push_back({"f", 0, box, row_major_strides(box.sizes)});
  return extents;
}

RC_GTEST_PROP(ExtentIndexPropertyTest, CandidatesHaveAllThatMeetTheBox, ()) {
  const auto some_box = rc::gen::exec([] {
    Box box;
    for (int d = 0; d < 2; ++d) {
      box.offsets.push_back(*rc::gen::inRange<std::int64_t>(0, 12));
      box.sizes.push_back(*rc::gen::inRange<std::int64_t>(1, 6));
    }
    return box;
  });
  const auto extents = extents_of(*rc::gen::container<std::vector<Box>>(some_box));
  const Box wanted = *some_box;
  const ExtentIndex index(extents);
  const auto found = index.candidates(wanted);
  for (std::size_t i = 0; i < extents.size(); ++i) {
    const auto times = std::count(found.begin(), found.end(), i);
    RC_ASSERT(times <= 1);
    if (intersect(extents[i].box, wanted)) RC_ASSERT(times == 1);
  }
}

TEST(ExtentIndexTest, LooksAtFewOfManyColumns) {
  std::vector<Box> columns;
  for (std::int64_t c = 0; c < 1000; ++c) columns.push_back({{0, c}, {7, 1}});
  const auto extents = extents_of(columns);
  EXPECT_EQ(ExtentIndex(extents).candidates({{2, 500}, {1, 3}}).size(), 3U);
}

TEST(ExtentIndexTest, AskedForABoxOfFewerDimensions) {
  std::vector<Box> columns;
  for (std::int64_t c = 0; c < 40; ++c) columns.push_back({{0, c}, {7, 1}});
  const auto extents = extents_of(columns);
  EXPECT_EQ(ExtentIndex(extents).candidates({{3}, {1}}).size(), 40U);
  EXPECT_EQ(ExtentIndex(extents).candidates({}).size(), 40U);
}

TEST(ExtentIndexTest, OfNoDimensions) {
  const auto extents = extents_of({Box{}});
  EXPECT_EQ(ExtentIndex(extents).candidates(Box{}).size(), 1U);
  EXPECT_EQ(ExtentIndex({}).candidates(Box{}).size(), 0U);
}

}  // namespace
}  // namespace accel::ckpt
