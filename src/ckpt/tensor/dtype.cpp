#include "ckpt/tensor/dtype.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

namespace accel::ckpt {
namespace {

// safetensors_rank follows the enum of safetensors 0.8.
constexpr std::array<DTypeInfo, 30> kDTypes = {{
    {DType::kBool, 1, "bool", "BoolStorage", "", "BOOL", 0, 12},
    {DType::kUInt8, 1, "uint8", "ByteStorage", "", "U8", 4, 1},
    {DType::kInt8, 1, "int8", "CharStorage", "", "I8", 5, 2},
    {DType::kUInt16, 2, "uint16", "", "UInt16Storage", "U16", 12, 28},
    {DType::kInt16, 2, "int16", "ShortStorage", "", "I16", 11, 3},
    {DType::kUInt32, 4, "uint32", "", "UInt32Storage", "U32", 16, 34},
    {DType::kInt32, 4, "int32", "IntStorage", "", "I32", 15, 4},
    {DType::kUInt64, 8, "uint64", "", "UInt64Storage", "U64", 21, 35},
    {DType::kInt64, 8, "int64", "LongStorage", "", "I64", 20, 5},
    {DType::kFloat16, 2, "float16", "HalfStorage", "", "F16", 13, 6},
    {DType::kBFloat16, 2, "bfloat16", "BFloat16Storage", "", "BF16", 14, 13},
    {DType::kFloat32, 4, "float32", "FloatStorage", "", "F32", 17, 7},
    {DType::kFloat64, 8, "float64", "DoubleStorage", "", "F64", 19, 8},
    {DType::kComplex32, 4, "complex32", "", "ComplexHalfStorage", "", -1, 9},
    {DType::kComplex64, 8, "complex64", "ComplexFloatStorage", "", "C64", 18, 10},
    {DType::kComplex128, 16, "complex128", "ComplexDoubleStorage", "", "", -1, 11},
    {DType::kFloat8E4M3FN, 1, "float8_e4m3fn", "", "Float8_e4m3fnStorage", "F8_E4M3", 7, 29},
    {DType::kFloat8E5M2, 1, "float8_e5m2", "", "Float8_e5m2Storage", "F8_E5M2", 6, 30},
    {DType::kFloat8E4M3FNUZ, 1, "float8_e4m3fnuz", "", "Float8_e4m3fnuzStorage", "F8_E4M3FNUZ", 9, 31},
    {DType::kFloat8E5M2FNUZ, 1, "float8_e5m2fnuz", "", "Float8_e5m2fnuzStorage", "F8_E5M2FNUZ", 10, 32},
    {DType::kFloat8E8M0FNU, 1, "float8_e8m0fnu", "", "Float8_e8m0fnuStorage", "F8_E8M0", 8, 33},
    {DType::kFloat4E2M1FNx2, 1, "float4_e2m1fn_x2", "", "Float4_e2m1fn_x2Storage", "F4", 1, 0, 2},
    {DType::kFloat6E2M3FNx4, 3, "float6_e2m3fn_x4", "", "", "F6_E2M3", 2, 0, 4, false},
    {DType::kFloat6E3M2FNx4, 3, "float6_e3m2fn_x4", "", "", "F6_E3M2", 3, 0, 4, false},
    {DType::kBits1x8, 1, "bits1x8", "", "Bits1x8Storage", "", -1, 0},
    {DType::kBits2x4, 1, "bits2x4", "", "Bits2x4Storage", "", -1, 0},
    {DType::kBits4x2, 1, "bits4x2", "", "Bits4x2Storage", "", -1, 0},
    {DType::kBits8, 1, "bits8", "", "Bits8Storage", "", -1, 0},
    {DType::kBits16, 2, "bits16", "", "Bits16Storage", "", -1, 0},
    {DType::kUnknown, 1, "unknown", "", "", "", -1, 0, 1, false},
}};

static_assert(
    [] {
      for (std::size_t i = 0; i < kDTypes.size(); ++i) {
        if (static_cast<std::size_t>(kDTypes[i].dtype) != i) return false;
      }
      return true;
    }(),
    "the table is indexed by the enum");

// kUnknown, the last of the table, is not found.
template <class T>
std::optional<DType> lookup(const T& value, T DTypeInfo::*field) {
  const auto found = std::find_if(kDTypes.begin(), kDTypes.end() - 1,
                                  [&](const DTypeInfo& info) { return info.*field == value; });
  if (value == T() || found == kDTypes.end() - 1) return std::nullopt;
  return found->dtype;
}

}  // namespace

const DTypeInfo& info_of(DType dtype) { return kDTypes.at(static_cast<std::size_t>(dtype)); }

std::span<const DTypeInfo> all_dtypes() { return kDTypes; }

std::optional<DType> dtype_of_torch_name(std::string_view name) {
  return lookup(name, &DTypeInfo::torch_name);
}

std::optional<DType> dtype_of_torch_storage(std::string_view name) {
  const std::optional<DType> dtype = lookup(name, &DTypeInfo::torch_storage);
  return dtype ? dtype : lookup(name, &DTypeInfo::script_storage);
}

std::optional<DType> dtype_of_safetensors_name(std::string_view name) {
  return lookup(name, &DTypeInfo::safetensors_name);
}

std::optional<DType> dtype_of_export_number(std::int64_t number) {
  return lookup(number, &DTypeInfo::export_number);
}

}  // namespace accel::ckpt
