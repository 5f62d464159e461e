#include "ckpt/tensor/dtype.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

namespace accel::ckpt {
namespace {

// safetensors_rank follows the enum of safetensors 0.8.
constexpr std::array<DTypeInfo, 30> kDTypes = {{
    {DType::kBool, 1, "bool", "BoolStorage", "BOOL", 0},
    {DType::kUInt8, 1, "uint8", "ByteStorage", "U8", 4},
    {DType::kInt8, 1, "int8", "CharStorage", "I8", 5},
    {DType::kUInt16, 2, "uint16", "", "U16", 12},
    {DType::kInt16, 2, "int16", "ShortStorage", "I16", 11},
    {DType::kUInt32, 4, "uint32", "", "U32", 16},
    {DType::kInt32, 4, "int32", "IntStorage", "I32", 15},
    {DType::kUInt64, 8, "uint64", "", "U64", 21},
    {DType::kInt64, 8, "int64", "LongStorage", "I64", 20},
    {DType::kFloat16, 2, "float16", "HalfStorage", "F16", 13},
    {DType::kBFloat16, 2, "bfloat16", "BFloat16Storage", "BF16", 14},
    {DType::kFloat32, 4, "float32", "FloatStorage", "F32", 17},
    {DType::kFloat64, 8, "float64", "DoubleStorage", "F64", 19},
    {DType::kComplex32, 4, "complex32", "", "", -1},
    {DType::kComplex64, 8, "complex64", "ComplexFloatStorage", "C64", 18},
    {DType::kComplex128, 16, "complex128", "ComplexDoubleStorage", "", -1},
    {DType::kFloat8E4M3FN, 1, "float8_e4m3fn", "", "F8_E4M3", 7},
    {DType::kFloat8E5M2, 1, "float8_e5m2", "", "F8_E5M2", 6},
    {DType::kFloat8E4M3FNUZ, 1, "float8_e4m3fnuz", "", "F8_E4M3FNUZ", 9},
    {DType::kFloat8E5M2FNUZ, 1, "float8_e5m2fnuz", "", "F8_E5M2FNUZ", 10},
    {DType::kFloat8E8M0FNU, 1, "float8_e8m0fnu", "", "F8_E8M0", 8},
    {DType::kFloat4E2M1FNx2, 1, "float4_e2m1fn_x2", "", "F4", 1, 2},
    {DType::kFloat6E2M3FNx4, 3, "float6_e2m3fn_x4", "", "F6_E2M3", 2, 4, false},
    {DType::kFloat6E3M2FNx4, 3, "float6_e3m2fn_x4", "", "F6_E3M2", 3, 4, false},
    {DType::kBits1x8, 1, "bits1x8", "", "", -1},
    {DType::kBits2x4, 1, "bits2x4", "", "", -1},
    {DType::kBits4x2, 1, "bits4x2", "", "", -1},
    {DType::kBits8, 1, "bits8", "", "", -1},
    {DType::kBits16, 2, "bits16", "", "", -1},
    {DType::kUnknown, 1, "unknown", "", "", -1, 1, false},
}};

static_assert(
    [] {
      for (std::size_t i = 0; i < kDTypes.size(); ++i) {
        if (static_cast<std::size_t>(kDTypes[i].dtype) != i) return false;
      }
      return true;
    }(),
    "the table is indexed by the enum");

std::optional<DType> lookup(std::string_view name, std::string_view DTypeInfo::*field) {
  if (name.empty() || name == info_of(DType::kUnknown).torch_name) return std::nullopt;
  const auto found = std::find_if(kDTypes.begin(), kDTypes.end(),
                                  [&](const DTypeInfo& info) { return info.*field == name; });
  if (found == kDTypes.end()) return std::nullopt;
  return found->dtype;
}

}  // namespace

const DTypeInfo& info_of(DType dtype) { return kDTypes.at(static_cast<std::size_t>(dtype)); }

std::span<const DTypeInfo> all_dtypes() { return kDTypes; }

std::optional<DType> dtype_of_torch_name(std::string_view name) {
  return lookup(name, &DTypeInfo::torch_name);
}

std::optional<DType> dtype_of_torch_storage(std::string_view name) {
  return lookup(name, &DTypeInfo::torch_storage);
}

std::optional<DType> dtype_of_safetensors_name(std::string_view name) {
  return lookup(name, &DTypeInfo::safetensors_name);
}

}  // namespace accel::ckpt
