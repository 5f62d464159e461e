#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace accel::ckpt {

/// The element types of torch tensors.
enum class DType : std::uint8_t {
  kBool,
  kUInt8,
  kInt8,
  kUInt16,
  kInt16,
  kUInt32,
  kInt32,
  kUInt64,
  kInt64,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kComplex32,
  kComplex64,
  kComplex128,
  kFloat8E4M3FN,
  kFloat8E5M2,
  kFloat8E4M3FNUZ,
  kFloat8E5M2FNUZ,
  kFloat8E8M0FNU,
};

/// The size of an element type, and its names in the formats.
struct DTypeInfo {
  DType dtype;
  std::uint64_t item_bytes;
  std::string_view torch_name;     ///< The name, such as "float32" in `torch.float32`.
  std::string_view torch_storage;  ///< A name like "FloatStorage"; empty if torch pickles an UntypedStorage.
  std::string_view safetensors_name;  ///< The name, such as "F32"; empty if safetensors has no such type.
  int safetensors_rank;               ///< Order in safetensors: tensors of higher rank come first.
};

[[nodiscard]] const DTypeInfo& info_of(DType dtype);
[[nodiscard]] inline std::uint64_t item_bytes(DType dtype) { return info_of(dtype).item_bytes; }
[[nodiscard]] inline std::string_view torch_name(DType dtype) { return info_of(dtype).torch_name; }

/// Every element type, in the order of the enum.
[[nodiscard]] std::span<const DTypeInfo> all_dtypes();

[[nodiscard]] std::optional<DType> dtype_of_torch_name(std::string_view name);
[[nodiscard]] std::optional<DType> dtype_of_torch_storage(std::string_view name);
[[nodiscard]] std::optional<DType> dtype_of_safetensors_name(std::string_view name);

}  // namespace accel::ckpt
