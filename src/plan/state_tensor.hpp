#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "ckpt/tensor/box.hpp"
#include "plan/flat_layout.hpp"

namespace accel {

/// How many numbers an optimizer keeps for a parameter in one tensor, and which rank has them.
enum class StateForm {
  kElements,  ///< One for each element of the parameter, in its shape. They are cut like the parameter.
  kRows,      ///< One for each row of [..., rows, columns], as [..., rows, 1]. Every rank has all.
  kColumns,   ///< One for each column of [..., rows, columns], as [..., 1, columns]. Every rank has all.
};

/// A tensor of float32 that an optimizer keeps for each parameter of a group.
struct StateTensor {
  std::string_view name;  ///< Its name in torch's state dict.
  double initial = 0;     ///< The value of its elements before the first step.
  StateForm form = StateForm::kElements;

  /// Whether each rank has the part that belongs to its shard, and not all of it.
  [[nodiscard]] bool is_cut() const { return form == StateForm::kElements; }
  /// The shape in a checkpoint for a parameter of `shape`.
  [[nodiscard]] std::vector<std::int64_t> shape_for(const std::vector<std::int64_t>& shape) const;
  [[nodiscard]] std::int64_t numel_for(const std::vector<std::int64_t>& shape) const;
};

/// The bytes of the whole state of one parameter, without its number of steps.
std::int64_t state_bytes_of(const std::vector<StateTensor>& tensors, const std::vector<std::int64_t>& shape);

/// The numbers of a tensor that one rank has for the parameters of `range`, for the shard `shard`. Those of a
/// tensor that is not cut lie one parameter behind the other.
std::int64_t numel_on_rank(const StateTensor& tensor, const FlatLayout& layout, const GroupRange& range,
                           int shard);
/// Where the numbers of one parameter of the range begin in a tensor that is not cut.
std::int64_t offset_on_rank(const StateTensor& tensor, const FlatLayout& layout, const GroupRange& range,
                            std::size_t parameter);

/// A shape of at least two dimensions as [matrices, rows, columns], of which the last two are the
/// parameter's.
std::vector<std::int64_t> as_matrices(const std::vector<std::int64_t>& shape);
/// A run of elements of such a parameter as boxes of as_matrices(), whose elements lie one behind the other.
std::vector<ckpt::Box> matrix_blocks(const std::vector<std::int64_t>& shape, const ElementRange& elements);

}  // namespace accel
