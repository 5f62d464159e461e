#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ckpt/pickle/value.hpp"
#include "ckpt/tensor/box.hpp"
#include "ckpt/tensor/dtype.hpp"

namespace accel::ckpt {

/// TorchTensor::obstacle of a quantized tensor.
inline constexpr std::string_view kQuantized = "a quantized tensor";

/// A tensor as a torch pickle describes it: a strided view of a storage that lies in a record of its own.
struct TorchTensor {
  DType dtype = DType::kFloat32;
  Dims shape;
  Dims strides;                     ///< The strides count elements.
  std::int64_t storage_offset = 0;  ///< Elements of the storage before the first one.
  std::string storage_key;          ///< The storage is the record `data/{storage_key}`.
  std::uint64_t storage_bytes = 0;  ///< Size according to the pickle.
  bool requires_grad = false;
  bool on_meta = false;  ///< The tensor is on the meta device: it has no elements, and its storage no record.
  /// Why the elements cannot be read from the storage, such as "a sparse tensor"; else empty. With an
  /// obstacle only dtype and shape are sure to be set, and the dtype may be kUnknown.
  std::string obstacle = {};
};

/// A storage as a torch pickle refers to it.
struct TorchStorage {
  std::string key;
  std::string type;              ///< Its class, such as "torch.FloatStorage".
  std::optional<DType> dtype;    ///< Nothing for a class that says no dtype, or an unknown one.
  std::uint64_t item_bytes = 0;  ///< The size of what the reference counts; 0 if the class is unknown.
  std::uint64_t bytes = 0;
  bool on_meta = false;
  bool is_view = false;  ///< It is a part of another storage. torch before 0.4 wrote such.
};

/// The storage that `value` refers to, or nothing if it is something else. Throws Error (kCorrupt) for a
/// reference that contradicts itself.
[[nodiscard]] std::optional<TorchStorage> torch_storage_of(const pickle::Value& value);

/// The tensor that `value` describes, or nothing if it is something else. A parameter, a tensor with
/// attributes, a tensor of a derived class and a class that wraps one tensor give the tensor of their data
/// (docs/formats.md, "Tensors in the pickle"). Throws Error (kCorrupt) if the description
/// contradicts itself: a negative size or stride, or elements beyond the storage.
[[nodiscard]] std::optional<TorchTensor> torch_tensor_of(const pickle::Value& value);

/// A dense row-major tensor that owns the storage `storage_key`, as torch.save pickles it.
[[nodiscard]] pickle::Value pickle_of_tensor(DType dtype, const Dims& shape, std::string_view storage_key);

/// A view of a storage on the CPU or the meta device, as torch pickles it. The tensor has no other obstacle.
[[nodiscard]] pickle::Value pickle_of_tensor(const TorchTensor& tensor);

/// The dimensions in a torch.Size or any sequence of integers. Throws Error (kCorrupt) for another value.
[[nodiscard]] Dims dims_of(const pickle::Value& value);

}  // namespace accel::ckpt
