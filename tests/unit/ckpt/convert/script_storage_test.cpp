#include "ckpt/convert/script_storage.hpp"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>

#include "raw_checkpoint.hpp"

namespace accel::ckpt {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::RawCheckpoint;
using testing::Truth;

StorageView view(const char* name, DType dtype, Dims shape, Dims strides, std::uint64_t offset,
                 std::size_t source) {
  return {name, dtype, std::move(shape), std::move(strides), offset, source};
}

/// Row-major.
StorageView dense(const char* name, Dims shape, std::uint64_t offset, std::size_t source) {
  Dims strides = row_major_strides(shape);
  return view(name, DType::kUInt8, std::move(shape), std::move(strides), offset, source);
}

Truth bytes(std::string data, Dims shape) {
  return {{"t"}, DType::kUInt8, std::move(shape), std::move(data)};
}

RC_GTEST_PROP(ScriptStorageTest, BoxesFollowTheStorageForAnyOrderOfDimensions, ()) {
  const Dims shape = *rc::gen::resize(4, rc::gen::container<Dims>(rc::gen::inRange<std::int64_t>(1, 5)));
  std::vector<std::size_t> order(shape.size());
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i-- > 1;) {
    std::swap(order[i], order[*rc::gen::inRange<std::size_t>(0, i + 1)]);
  }
  Dims strides(shape.size());
  std::int64_t run = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = run;
    run *= shape[order[i]];
  }
  // Element n of the storage must be the nth element that the boxes give.
  std::vector<std::int64_t> places;
  for (const Box& box : boxes_in_storage_order(shape, strides, 1 << 10)) {
    Dims at = box.offsets;
    for (std::int64_t i = 0; i < box.numel(); ++i) {
      places.push_back(std::inner_product(at.begin(), at.end(), strides.begin(), std::int64_t{0}));
      for (std::size_t d = at.size(); d-- > 0;) {
        if (++at[d] < box.offsets[d] + box.sizes[d]) break;
        at[d] = box.offsets[d];
      }
    }
  }
  std::vector<std::int64_t> expected(static_cast<std::size_t>(checked_numel(shape)));
  std::iota(expected.begin(), expected.end(), 0);
  RC_ASSERT(places == expected);
}

TEST(ScriptStorageTest, RowMajorIsOneBoxAndGapsAreNone) {
  EXPECT_EQ(boxes_in_storage_order({4, 5}, {5, 1}, 1), std::vector<Box>{Box::whole({4, 5})});
  EXPECT_EQ(boxes_in_storage_order({}, {}, 1), std::vector<Box>{Box::whole({})});
  EXPECT_TRUE(boxes_in_storage_order({4, 5}, {6, 1}, 100).empty());
  EXPECT_TRUE(boxes_in_storage_order({4, 5}, {0, 1}, 100).empty());
  EXPECT_EQ(boxes_in_storage_order({4, 5}, {1, 4}, 5).size(), 5U);
  EXPECT_TRUE(boxes_in_storage_order({4, 5}, {1, 4}, 4).empty());
}

TEST(ScriptStorageTest, AViewEndsBehindItsLastElement) {
  EXPECT_EQ(view("t", DType::kFloat32, {2, 3}, {10, 2}, 8, 0).end(), 8 + 4 * (10 + 4 + 1U));
  EXPECT_EQ(view("t", DType::kFloat32, {}, {}, 8, 0).end(), 12U);
  EXPECT_EQ(view("t", DType::kFloat32, {0, 3}, {3, 1}, 8, 0).end(), 8U);
  EXPECT_THROW((void)view("t", DType::kFloat32, {INT64_MAX, 2}, {INT64_MAX, 1}, 8, 0).end(), Error);
}

TEST(ScriptStorageTest, OneTensorIsWrittenFromTheCheckpoint) {
  RawCheckpoint source({bytes("abcdef", {2, 3}), bytes("abcdef", {2, 3}), bytes("abcdeg", {2, 3})});
  const auto content = content_of_storage({dense("a", {2, 3}, 0, 0), dense("b", {2, 3}, 0, 1)}, 6, source);
  ASSERT_TRUE(content);
  EXPECT_EQ(content->source, 0U);
  EXPECT_TRUE(content->boxes.empty());
  EXPECT_EQ(content_of_storage({view("a", DType::kUInt8, {2, 3}, {1, 2}, 0, 0)}, 6, source)->boxes.size(),
            3U);
  EXPECT_THAT(error_of(ErrorKind::kFailure,
                       [&] {
                         (void)content_of_storage(
                             {dense("a", {2, 3}, 0, 0), dense("b", {2, 3}, 0, 1), dense("c", {2, 3}, 0, 2)},
                             6, source);
                       }),
              HasSubstr("'a' and 'c' share their bytes in the model, but differ in the checkpoint"));
}

TEST(ScriptStorageTest, OthersHaveToBePutTogether) {
  RawCheckpoint source({bytes("abcdef", {2, 3}), bytes("xy", {2})});
  EXPECT_FALSE(content_of_storage({dense("a", {2, 3}, 0, 0)}, 7, source));
  EXPECT_FALSE(content_of_storage({dense("b", {2}, 1, 1)}, 2, source));
  EXPECT_FALSE(content_of_storage({dense("a", {2, 3}, 0, 0), dense("b", {2}, 0, 1)}, 6, source));
}

TEST(ScriptStorageTest, FillsAtStridesAndKeepsTheRest) {
  RawCheckpoint source({bytes("abcd", {2, 2}), bytes("XY", {2})});
  std::string storage = "..........";
  fill_storage(storage, {view("t", DType::kUInt8, {2, 2}, {1, 3}, 1, 0), dense("v", {2}, 8, 1)}, source);
  EXPECT_EQ(storage, ".ac.bd..XY");
}

TEST(ScriptStorageTest, ConvertsToTheModelsType) {
  const float value = 1.5F;
  const std::string data(reinterpret_cast<const char*>(&value), sizeof value);
  RawCheckpoint source({Truth{{"t"}, DType::kFloat32, {1}, data}});
  std::string storage = "....";
  fill_storage(storage, {view("t", DType::kBFloat16, {1}, {1}, 2, 0)}, source);
  EXPECT_EQ(storage, "..\xc0\x3f");
}

TEST(ScriptStorageTest, OverlapsMustAgree) {
  RawCheckpoint source({bytes("abc", {3}), bytes("cde", {3}), bytes("xde", {3})});
  std::string storage = "......";
  fill_storage(storage, {dense("first", {3}, 0, 0), dense("second", {3}, 2, 1)}, source);
  EXPECT_EQ(storage, "abcde.");
  EXPECT_THAT(
      error_of(ErrorKind::kFailure,
               [&] {
                 fill_storage(storage, {dense("first", {3}, 0, 0), dense("third", {3}, 2, 2)}, source);
               }),
      HasSubstr("'first' and 'third'"));
}

}  // namespace
}  // namespace accel::ckpt
