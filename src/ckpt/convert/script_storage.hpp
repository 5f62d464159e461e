#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/plan/output_plan.hpp"
#include "ckpt/read/checkpoint.hpp"
#include "ckpt/tensor/box.hpp"
#include "ckpt/tensor/dtype.hpp"

namespace accel::ckpt {

/// A view of a storage of the model, and the tensor of the checkpoint that becomes its value.
struct StorageView {
  std::string name;  ///< The name in the model.
  DType dtype = DType::kFloat32;
  Dims shape;
  Dims strides;              ///< The strides count elements.
  std::uint64_t offset = 0;  ///< Offset of the first element in the storage, in bytes.
  std::size_t source = 0;    ///< Index into Checkpoint::tensors().

  /// Offset at which the last element ends in the storage, in bytes. Throws Error (kCorrupt) on overflow.
  [[nodiscard]] std::uint64_t end() const;
  /// Whether this view has the same elements as `other`, whatever values they get.
  [[nodiscard]] bool same_place(const StorageView& other) const;
};

/// The elements of a dense tensor in the order in which they lie in its storage, as boxes whose row-major
/// contents follow each other. A tensor that is row-major itself is one box. Returns no boxes if the tensor
/// is not dense (it has gaps, or several elements in one place), or if there would be more than `most_boxes`.
[[nodiscard]] std::vector<Box> boxes_in_storage_order(const Dims& shape, const Dims& strides,
                                                      std::size_t most_boxes);

/// The content of a storage of `bytes` bytes whose views are all one tensor of the checkpoint. Returns
/// nothing if the storage has to be assembled with fill_storage. Throws Error (kFailure) if views of the same
/// elements differ in the checkpoint.
[[nodiscard]] std::optional<TensorContent> content_of_storage(const std::vector<StorageView>& views,
                                                              std::uint64_t bytes, Checkpoint& source);

/// Writes the views into `storage`, which holds the bytes of the model. The views must end within it. Throws
/// Error (kFailure) if two views disagree about a byte.
void fill_storage(std::string& storage, const std::vector<StorageView>& views, Checkpoint& source);

}  // namespace accel::ckpt
