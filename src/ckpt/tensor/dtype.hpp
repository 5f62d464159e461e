#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace accel::ckpt {

/// The element types of torch and safetensors. The last ones are carried as bytes: is_opaque().
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
  kFloat4E2M1FNx2,  ///< Two numbers of four bits in a byte.
  kFloat6E2M3FNx4,  ///< Four numbers of six bits in three bytes; torch has no such type.
  kFloat6E3M2FNx4,
  kBits1x8,
  kBits2x4,
  kBits4x2,
  kBits8,
  kBits16,
  kUnknown,  ///< The type of a tensor that can be listed, but not read: nobody knows its size.
};

/// The size of an element type, and its names in the formats.
struct DTypeInfo {
  DType dtype;
  std::uint64_t item_bytes;
  std::string_view torch_name;      ///< The name, such as "float32" in `torch.float32`.
  std::string_view torch_storage;   ///< A name like "FloatStorage"; empty if torch pickles an UntypedStorage.
  std::string_view script_storage;  ///< The name in TorchScript, if torch_storage is empty and it has one.
  std::string_view safetensors_name;  ///< The name, such as "F32"; empty if safetensors has no such type.
  int safetensors_rank;               ///< Order in safetensors: tensors of higher rank come first.
  std::int64_t export_number;         ///< The number in the schema of torch.export; 0 for none.
  /// How many elements a shape of safetensors counts where one of torch counts one: those that share bytes.
  std::int64_t safetensors_pack = 1;
  bool in_torch = true;  ///< Whether torch has the type. If not, the torch_name is made up after its names.
};

[[nodiscard]] const DTypeInfo& info_of(DType dtype);
[[nodiscard]] inline std::uint64_t item_bytes(DType dtype) { return info_of(dtype).item_bytes; }
[[nodiscard]] inline std::string_view torch_name(DType dtype) { return info_of(dtype).torch_name; }

/// Whether the elements are bytes to accel: they are moved and compared, but it does not know their numbers.
[[nodiscard]] inline bool is_opaque(DType dtype) { return dtype >= DType::kFloat4E2M1FNx2; }

/// Every element type, in the order of the enum.
[[nodiscard]] std::span<const DTypeInfo> all_dtypes();

[[nodiscard]] std::optional<DType> dtype_of_torch_name(std::string_view name);
/// The element type of a storage, as Python or TorchScript names it.
[[nodiscard]] std::optional<DType> dtype_of_torch_storage(std::string_view name);
[[nodiscard]] std::optional<DType> dtype_of_safetensors_name(std::string_view name);
[[nodiscard]] std::optional<DType> dtype_of_export_number(std::int64_t number);

}  // namespace accel::ckpt
