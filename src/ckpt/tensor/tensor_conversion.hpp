#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/tensor/box.hpp"
#include "ckpt/tensor/stored_tensor.hpp"

namespace accel::ckpt {

/// A box of the tensor `from`, and where its elements lie in another tensor, which is called the target.
struct TensorPart {
  std::string from;
  Box box;  ///< The box of `from`.
  Dims at;  ///< Where the elements begin in the target.
  /// For each dimension of the target, the dimension of `from` that runs along it, or kNewDim. A dimension of
  /// `from` that is not here has size 1 in the box.
  std::vector<int> dims;

  static constexpr int kNewDim = -1;  ///< The part has size 1 in this dimension of the target.

  friend bool operator==(const TensorPart&, const TensorPart&) = default;
};

/// What a tensor consists of that has another name, or another shape, than the tensors that are stored.
struct TensorConversion {
  std::string name;
  std::string from;               ///< The tensor that is the same but for its name, or empty.
  std::vector<TensorPart> parts;  ///< The parts that cover the tensor, if `from` is empty.

  /// The names of the tensors that it consists of, each once.
  [[nodiscard]] std::set<std::string> sources() const;

  friend bool operator==(const TensorConversion&, const TensorConversion&) = default;
};

/// Parses the list `weight_conversions` of a model file's notes (docs/formats.md). An empty text is an empty
/// list. Throws Error (kUsage) for other text than such a list.
[[nodiscard]] std::vector<TensorConversion> parse_conversions(std::string_view text);

/// The conversions in the other direction: from the tensors that `conversions` make to those that they take.
[[nodiscard]] std::vector<TensorConversion> inverse(std::span<const TensorConversion> conversions);

/// The shape of the tensor that the parts cover.
[[nodiscard]] Dims shape_of(std::span<const TensorPart> parts);

/// The extents of the target that come from `part`, if `extents` hold the tensor `part.from` with
/// `item_bytes` per element. Both are boxes with strides, so that no bytes have to be read for it.
[[nodiscard]] std::vector<Extent> extents_in_target(const TensorPart& part, std::span<const Extent> extents,
                                                    std::uint64_t item_bytes);

}  // namespace accel::ckpt
