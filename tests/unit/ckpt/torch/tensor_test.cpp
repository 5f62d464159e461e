#include "ckpt/torch/tensor.hpp"

#include <gmock/gmock.h>

#include "ckpt/pickle/writer.hpp"
#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using namespace std::string_literals;
using pickle::Dict;
using pickle::Global;
using pickle::ObjectParts;
using pickle::Tuple;
using pickle::Value;
using testing::error_of;
using ::testing::HasSubstr;

// _rebuild_tensor_v2(storage of 6 floats, offset, size, stride, ...)
Value tensor(Value offset, Value size, Value stride, Value numel = 6, const char* storage = "FloatStorage") {
  const Value id = Tuple{{"storage", Global("torch", storage), "7", "cpu", std::move(numel)}};
  return pickle::reduce(Global("torch._utils", "_rebuild_tensor_v2"),
                        {pickle::Persistent{{id}}, std::move(offset), std::move(size), std::move(stride),
                         false, pickle::reduce(Global("collections", "OrderedDict"), {})});
}

TEST(TorchTensorTest, WhatIsWrittenIsReadForEveryType) {
  for (const DTypeInfo& info : all_dtypes()) {
    for (const Dims& shape : {Dims{}, Dims{0, 3}, Dims{2, 3, 4}}) {
      const auto found = torch_tensor_of(pickle_of_tensor(info.dtype, shape, "3"));
      ASSERT_TRUE(found) << info.torch_name;
      EXPECT_EQ(found->dtype, info.dtype);
      EXPECT_EQ(found->shape, shape);
      EXPECT_EQ(found->strides, row_major_strides(shape));
      EXPECT_EQ(found->storage_key, "3");
      EXPECT_EQ(found->storage_bytes, checked_nbytes(shape, info.item_bytes));
    }
  }
}

TEST(TorchTensorTest, ReadsViewsAndParameters) {
  const Value view = tensor(1, Tuple{{2, 2}}, Tuple{{1, 3}});
  const auto found =
      torch_tensor_of(pickle::reduce(Global("torch._utils", "_rebuild_parameter"), {view, true, 0}));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->storage_offset, 1);
  EXPECT_EQ(found->strides, (Dims{1, 3}));
}

TEST(TorchTensorTest, OtherObjectsAreNoTensors) {
  EXPECT_EQ(torch_tensor_of(1), std::nullopt);
  EXPECT_EQ(torch_tensor_of(pickle::reduce(Global("torch", "Size"), {})), std::nullopt);
}

TEST(TorchTensorTest, RejectsElementsBeyondTheStorage) {
  const auto rejection = [](Value offset, Value size, Value stride) {
    return error_of(ErrorKind::kCorrupt, [&] { (void)torch_tensor_of(tensor(offset, size, stride)); });
  };
  EXPECT_THAT(rejection(1, Tuple{{2, 3}}, Tuple{{3, 1}}), HasSubstr("needs 28 bytes of storage, but has 24"));
  EXPECT_THAT(rejection(0, Tuple{{2, 3}}, Tuple{{4, 1}}), HasSubstr("needs 28"));
  EXPECT_THAT(rejection(0, Tuple{{2, 3}}, Tuple{{1}}), HasSubstr("with strides [1]"));
  EXPECT_THAT(rejection(-1, Tuple{{2}}, Tuple{{1}}), HasSubstr("storage offset is -1"));
  EXPECT_THAT(rejection(0, Tuple{{-2}}, Tuple{{1}}), HasSubstr("dimension is -2"));
  EXPECT_THAT(rejection(0, Tuple{{2}}, Tuple{{-1}}), HasSubstr("dimension is -1"));
  EXPECT_THAT(rejection(0, Tuple{{2}}, Tuple{{INT64_MAX}}), HasSubstr("overflows"));
  EXPECT_THAT(rejection(0, "x", Tuple{{1}}), HasSubstr("shape is 'x'"));
}

TEST(TorchTensorTest, RejectsUnknownStorages) {
  const auto unknown = torch_tensor_of(tensor(0, Tuple{{1}}, Tuple{{1}}, 6, "QuiteUnknownStorage"));
  ASSERT_TRUE(unknown);
  EXPECT_EQ(unknown->dtype, DType::kUnknown);
  EXPECT_THAT(unknown->obstacle, HasSubstr("torch.QuiteUnknownStorage"));
  EXPECT_THAT(error_of(ErrorKind::kCorrupt,
                       [] { (void)torch_tensor_of(tensor(0, Tuple{{1}}, Tuple{{1}}, 6, "QuiteUnknown")); }),
              HasSubstr("torch.QuiteUnknown"));
  EXPECT_THROW((void)torch_tensor_of(tensor(0, Tuple{{1}}, Tuple{{1}}, "six")), Error);
  EXPECT_THROW((void)torch_tensor_of(pickle::reduce(Global("torch._utils", "_rebuild_tensor_v2"), {1, 2})),
               Error);
}

TEST(TorchTensorTest, SizesAreSequences) {
  EXPECT_EQ(dims_of(pickle::reduce(Global("torch", "Size"), {Tuple{{2, 3}}})), (Dims{2, 3}));
  EXPECT_EQ(dims_of(pickle::List{{4}}), Dims{4});
  EXPECT_THROW((void)dims_of(5), Error);
}

// A float32 tensor [2] of a class that holds other tensors.
Value wrapper_with(const Dict& attributes) {
  return pickle::reduce(
      Global("torch._tensor", "_rebuild_from_type_v2"),
      {Global("torch._utils", "_rebuild_wrapper_subclass"), Global("my", "Wrapper"),
       Tuple{{Global("my", "Wrapper"), Global("torch", "float32"), Tuple{{2}}}}, attributes});
}

std::string obstacle_of(const Dict& attributes) {
  return torch_tensor_of(wrapper_with(attributes))->obstacle;
}

constexpr std::string_view kIsWrapper = "a tensor of the class my.Wrapper";

TEST(TorchTensorTest, AWrapperIsItsDataIfNothingElseChangesIt) {
  const Value data = pickle_of_tensor(DType::kFloat32, {2}, "7");
  const Value scalar = pickle_of_tensor(DType::kFloat32, {}, "1");
  for (const Dict& attributes :
       {Dict{{{"_tensor", data}, {"_dtype", 1}}}, Dict{{{"_tensor", data}, {"_precomputed_scale", scalar}}},
        Dict{{{"elem", data}}}, Dict{{{"name", "w"}, {"elem", data}, {"of", Global("my", "Class")}}},
        Dict{{{"outer", wrapper_with(Dict{{{"inner", data}}})}}}}) {
    const std::optional<TorchTensor> found = torch_tensor_of(wrapper_with(attributes));
    EXPECT_EQ(found->obstacle, "");
    EXPECT_EQ(found->storage_key, "7");
  }
  // The values may be the product of both.
  for (const Dict& attributes :
       {Dict{{{"data", data}, {"scale", scalar}}}, Dict{{{"scale", scalar}, {"data", data}}},
        Dict{{{"a", data}, {"b", data}}}, Dict{{{"_tensor", data}, {"scale", scalar}}},
        Dict{{{"_tensor", data}, {"inner", Dict{{{"scale", scalar}}}}}},
        Dict{{{"data", data}, {"scale", 7.0}}}, Dict{{{"_tensor", data}, {"scale", 7.0}}},
        Dict{{{"_precomputed_scale", scalar}}}, Dict{{{"data", data}, {"_precomputed_scale", scalar}}}})
    EXPECT_EQ(obstacle_of(attributes), kIsWrapper);
}

TEST(TorchTensorTest, AWrapperIsNotATensorOfAnotherFormOrInsideOfSomething) {
  const Value sparse = pickle::reduce(
      Global("torch._utils", "_rebuild_sparse_tensor"),
      {Global("torch", "sparse_coo"), Tuple{{pickle_of_tensor(DType::kInt64, {1, 2}, "0"),
                                             pickle_of_tensor(DType::kFloat32, {2}, "1"), Tuple{{2}}}}});
  const Value data = pickle_of_tensor(DType::kFloat32, {2}, "0");
  const Value product = wrapper_with(Dict{{{"data", data}, {"scale", 7.0}}});
  for (const Value& held :
       {pickle_of_tensor(DType::kFloat32, {3}, "0"), pickle_of_tensor(DType::kFloat32, {2, 1}, "0"),
        pickle_of_tensor(DType::kInt32, {2}, "0"), sparse, product, Value(pickle::List{{data}})}) {
    EXPECT_EQ(obstacle_of(Dict{{{"elem", held}}}), kIsWrapper);
  }
  for (const Dict& attributes : {Dict{}, Dict{{{"elem", Value()}}}, Dict{{{"elem", 7.0}}}})
    EXPECT_EQ(obstacle_of(attributes), kIsWrapper);
  // A tensor beyond its storage is corrupt, as it is outside of a wrapper.
  const Value beyond = tensor(5, Tuple{{2}}, Tuple{{1}});
  EXPECT_THAT(error_of(ErrorKind::kCorrupt,
                       [&] {
                         (void)obstacle_of(Dict{{{"elem", beyond}}});
                       }),
              HasSubstr("needs 28 bytes of storage"));
}

}  // namespace
}  // namespace accel::ckpt
