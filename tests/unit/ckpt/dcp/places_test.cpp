#include "ckpt/dcp/places.hpp"

#include <gtest/gtest.h>

namespace accel::ckpt {
namespace {

std::uint32_t number(std::int64_t value) { return static_cast<std::uint32_t>(value); }

TEST(DcpPlacesTest, FindsChunksInAnyOrder) {
  DcpPlaces places(3);
  for (const std::int64_t row : {3, 1, 2, 0}) {
    places.add_chunk(2, Dims{row, 5}, number(row));
    places.add_chunk(0, Dims{row}, number(100 + row));
  }
  places.sort();
  for (const std::int64_t row : {0, 1, 3, 2, 2}) {
    places.select(2);
    EXPECT_EQ(places.find_chunk(Dims{row, 5}), number(row));
    EXPECT_EQ(places.find_chunk(Dims{row, 4}), std::nullopt);
    places.select(0);
    EXPECT_EQ(places.find_chunk(Dims{row}), number(100 + row));
  }
  places.select(1);
  EXPECT_EQ(places.find_chunk(Dims{0}), std::nullopt);
}

TEST(DcpPlacesTest, TheLastOfAnOffsetCounts) {
  DcpPlaces places(1);
  for (const std::int64_t value : {1, 2, 3}) {
    places.add_chunk(0, Dims{7}, number(value));
    places.add_chunk(0, Dims{9}, number(10 * value));
  }
  places.sort();
  places.select(0);
  EXPECT_EQ(places.find_chunk(Dims{7}), number(3));
  EXPECT_EQ(places.find_chunk(Dims{9}), number(30));
  EXPECT_EQ(places.find_chunk(Dims{7}), number(3));
}

TEST(DcpPlacesTest, ObjectsAndScalarsOfOneNameAreKeptApart) {
  DcpPlaces places(2);
  places.add_chunk(0, {}, number(1));
  places.add_object(0, number(2));
  places.add_object(1, number(3));
  places.add_object(1, number(4));
  places.sort();
  places.select(0);
  EXPECT_EQ(places.find_chunk({}), number(1));
  EXPECT_EQ(places.find_object(0), number(2));
  EXPECT_EQ(places.find_object(1), number(4));
  places.select(1);
  EXPECT_EQ(places.find_chunk({}), std::nullopt);
}

}  // namespace
}  // namespace accel::ckpt
