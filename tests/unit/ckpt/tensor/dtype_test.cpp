#include "ckpt/tensor/dtype.hpp"

#include <gtest/gtest.h>

#include <set>

namespace accel::ckpt {
namespace {

TEST(DTypeTest, NamesLeadBackToTheirType) {
  for (const DTypeInfo& info : all_dtypes()) {
    if (info.dtype == DType::kUnknown) continue;
    EXPECT_EQ(dtype_of_torch_name(info.torch_name), info.dtype);
    if (!info.torch_storage.empty()) {
      EXPECT_EQ(dtype_of_torch_storage(info.torch_storage), info.dtype);
    }
    if (!info.script_storage.empty()) {
      EXPECT_EQ(dtype_of_torch_storage(info.script_storage), info.dtype);
    }
    if (!info.safetensors_name.empty()) {
      EXPECT_EQ(dtype_of_safetensors_name(info.safetensors_name), info.dtype);
    }
    if (info.export_number != 0) {
      EXPECT_EQ(dtype_of_export_number(info.export_number), info.dtype);
    }
  }
}

TEST(DTypeTest, UnknownAndEmptyNamesAreNothing) {
  EXPECT_EQ(dtype_of_torch_name("float33"), std::nullopt);
  EXPECT_EQ(dtype_of_torch_name("unknown"), std::nullopt);
  EXPECT_EQ(dtype_of_torch_storage(""), std::nullopt);
  EXPECT_EQ(dtype_of_safetensors_name(""), std::nullopt);
  EXPECT_EQ(dtype_of_export_number(0), std::nullopt);
  EXPECT_EQ(dtype_of_export_number(14), std::nullopt);
}

TEST(DTypeTest, SizesAreThoseOfTorch) {
  EXPECT_EQ(item_bytes(DType::kBool), 1U);
  EXPECT_EQ(item_bytes(DType::kBFloat16), 2U);
  EXPECT_EQ(item_bytes(DType::kFloat8E5M2FNUZ), 1U);
  EXPECT_EQ(item_bytes(DType::kComplex128), 16U);
}

TEST(DTypeTest, SafetensorsOrderIsStrictAndBySize) {
  std::set<int> ranks;
  for (const DTypeInfo& a : all_dtypes()) {
    if (a.safetensors_name.empty()) continue;
    EXPECT_TRUE(ranks.insert(a.safetensors_rank).second) << a.torch_name;
    for (const DTypeInfo& b : all_dtypes()) {
      if (b.item_bytes < a.item_bytes && a.safetensors_pack == 1) {
        EXPECT_TRUE(b.safetensors_rank < a.safetensors_rank) << b.torch_name << " before " << a.torch_name;
      }
    }
  }
}

}  // namespace
}  // namespace accel::ckpt
