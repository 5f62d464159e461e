#include "ckpt/merge_plan.hpp"

#include <gmock/gmock.h>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;

StoredTensor whole(const std::string& name, DType dtype, Dims shape) {
  const Dims strides = row_major_strides(shape);
  return {name, dtype, shape, {{"f", 64, Box::whole(shape), strides}}};
}

TEST(MergePlanTest, PlacesTensorsInTheOrderOfTheFile) {
  const MergePlan plan = plan_merge({whole("a", DType::kInt8, {3}), whole("b", DType::kFloat32, {2, 2})}, {});
  ASSERT_EQ(plan.tensors.size(), 2U);
  EXPECT_EQ(plan.tensors[0].source.name, "b");
  EXPECT_EQ(plan.tensors[0].target, plan.prefix.size());
  EXPECT_EQ(plan.tensors[1].target, plan.prefix.size() + 16);
  EXPECT_EQ(plan.tensors[1].bytes, 3U);
  EXPECT_EQ(plan.tensor_bytes(), 19U);
}

TEST(MergePlanTest, RecordsDroppedNames) {
  const MergePlan plan =
      plan_merge({whole("a", DType::kInt8, {3}), whole("b", DType::kInt8, {3})}, {{"b", "a"}});
  EXPECT_EQ(plan.tensors.size(), 1U);
  EXPECT_THAT(plan.prefix, HasSubstr(R"("__metadata__":{"b":"a","format":"pt"})"));
}

TEST(MergePlanTest, RejectsHolesAndOverlap) {
  StoredTensor hole = whole("a", DType::kInt8, {4});
  hole.extents[0].box = {{0}, {3}};
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)plan_merge({hole}, {}); }),
              AllOf(HasSubstr("tensor 'a' of shape [4]"), HasSubstr("cover 3 of 4")));
  StoredTensor overlap = whole("a", DType::kInt8, {4});
  overlap.extents.push_back({"g", 0, {{3}, {1}}, {1}});
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)plan_merge({overlap}, {}); }), HasSubstr("overlap"));
}

TEST(MergePlanTest, RefusesTwoTensorsOfOneName) {
  (void)error_of(ErrorKind::kFailure, [] {
    (void)plan_merge({whole("a", DType::kInt8, {1}), whole("a", DType::kInt8, {1})}, {});
  });
}

TEST(MergePlanTest, CanBeRead) {
  const std::string text =
      describe(plan_merge({whole("a", DType::kInt8, {3}), whole("b", DType::kInt8, {3})}, {{"b", "a"}}));
  EXPECT_THAT(text, AllOf(HasSubstr("a int8 [3] -> bytes"), HasSubstr("[0:3] from f at byte 64"),
                          HasSubstr("b is left out")));
}

}  // namespace
}  // namespace accel::ckpt
