#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ckpt/pickle/value.hpp"
#include "ckpt/tensor/box.hpp"
#include "ckpt/tensor/dtype.hpp"

namespace accel::ckpt {

/// The obstacle of a quantized tensor.
inline constexpr std::string_view kQuantized = "a quantized tensor";

/// A tensor as a torch pickle describes it: a strided view of a storage that lies in a record of its own.
struct TorchTensor {
  DType dtype = DType::kFloat32;
  Dims shape;
  Dims strides;                     ///< In elements.
  std::int64_t storage_offset = 0;  ///< In elements.
  std::string storage_key;          ///< The storage is the record `data/{storage_key}`.
  std::uint64_t storage_bytes = 0;  ///< As the pickle says.
  bool requires_grad = false;
  bool on_meta = false;  ///< Of the meta device: it has a size and no elements, and its storage no record.
  /// What keeps its elements from being what the storage holds there: "a sparse tensor". Then only dtype and
  /// shape are sure to be set.
  std::string_view obstacle = {};
};

/// The tensor that `value` stands for; nothing if it is something else. Parameters, and tensors with
/// attributes or of a class derived from Tensor are their data. Throws Error (kCorrupt) if it is a tensor
/// whose description contradicts itself: a negative size or stride, or elements beyond its storage.
[[nodiscard]] std::optional<TorchTensor> torch_tensor_of(const pickle::Value& value);

/// A dense row-major tensor that owns the storage `storage_key`, as torch.save pickles it.
[[nodiscard]] pickle::Value pickle_of_tensor(DType dtype, const Dims& shape, std::string_view storage_key);

/// A torch.Size, or any sequence of integers, as dimensions. Throws Error (kCorrupt) if it is not one.
[[nodiscard]] Dims dims_of(const pickle::Value& value);

}  // namespace accel::ckpt
