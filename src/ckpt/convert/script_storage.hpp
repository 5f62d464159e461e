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

/// A view of a storage of the model, and the tensor of the checkpoint that is to be its value.
struct StorageView {
  std::string name;  ///< In the model.
  DType dtype = DType::kFloat32;
  Dims shape;
  Dims strides;              ///< In elements.
  std::uint64_t offset = 0;  ///< Of the first element, in bytes, in the storage.
  std::size_t source = 0;    ///< Index into Checkpoint::tensors().

  /// Where its last element ends in the storage. Throws Error (kCorrupt) on overflow.
  [[nodiscard]] std::uint64_t end() const;
  /// Whether it is the same elements as `other`, whatever their values are to be.
  [[nodiscard]] bool same_place(const StorageView& other) const;
};

/// The elements of a dense tensor in the order in which they lie in its storage, as boxes whose row-major
/// contents follow each other; one box if that is row-major itself. Nothing if the tensor is not dense (it
/// has gaps, or elements that are one), or if it would take more than `most_boxes`.
[[nodiscard]] std::vector<Box> boxes_in_storage_order(const Dims& shape, const Dims& strides,
                                                      std::size_t most_boxes);

/// What a storage of `bytes` bytes holds with these views of it written, if that is one tensor of the
/// checkpoint; nothing if it has to be put together. Views that are the same must be
/// the same in the checkpoint, too: throws Error (kFailure) if they differ.
[[nodiscard]] std::optional<TensorContent> content_of_storage(const std::vector<StorageView>& views,
                                                              std::uint64_t bytes, Checkpoint& source);

/// Writes the views, which must end within it, into `storage`, which holds what stays of it. Throws Error
/// (kFailure) if two of them disagree about a byte.
void fill_storage(std::string& storage, const std::vector<StorageView>& views, Checkpoint& source);

}  // namespace accel::ckpt
