#include "ckpt/tensor/dtype.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

namespace accel::ckpt {
namespace {

// safetensors_rank follows the enum of safetensors 0.8. Its F4 and F6 types are not here: torch has no
// elements of less than a byte.
constexpr std::array<DTypeInfo, 21> kDTypes = {{
    {DType::kBool, 1, "bool", "BoolStorage", "BOOL", 0},
    {DType::kUInt8, 1, "uint8", "ByteStorage", "U8", 1},
    {DType::kInt8, 1, "int8", "CharStorage", "I8", 2},
    {DType::kUInt16, 2, "uint16", "", "U16", 9},
    {DType::kInt16, 2, "int16", "ShortStorage", "I16", 8},
    {DType::kUInt32, 4, "uint32", "", "U32", 13},
    {DType::kInt32, 4, "int32", "IntStorage", "I32", 12},
    {DType::kUInt64, 8, "uint64", "", "U64", 18},
    {DType::kInt64, 8, "int64", "LongStorage", "I64", 17},
    {DType::kFloat16, 2, "float16", "HalfStorage", "F16", 10},
    {DType::kBFloat16, 2, "bfloat16", "BFloat16Storage", "BF16", 11},
    {DType::kFloat32, 4, "float32", "FloatStorage", "F32", 14},
    {DType::kFloat64, 8, "float64", "DoubleStorage", "F64", 16},
    {DType::kComplex32, 4, "complex32", "", "", -1},
    {DType::kComplex64, 8, "complex64", "ComplexFloatStorage", "C64", 15},
    {DType::kComplex128, 16, "complex128", "ComplexDoubleStorage", "", -1},
    {DType::kFloat8E4M3FN, 1, "float8_e4m3fn", "", "F8_E4M3", 4},
    {DType::kFloat8E5M2, 1, "float8_e5m2", "", "F8_E5M2", 3},
    {DType::kFloat8E4M3FNUZ, 1, "float8_e4m3fnuz", "", "F8_E4M3FNUZ", 6},
    {DType::kFloat8E5M2FNUZ, 1, "float8_e5m2fnuz", "", "F8_E5M2FNUZ", 7},
    {DType::kFloat8E8M0FNU, 1, "float8_e8m0fnu", "", "F8_E8M0", 5},
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
  if (name.empty()) return std::nullopt;
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
