#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/tensor/box.hpp"
#include "plan/layout/flat_layout.hpp"

namespace accel {

/// How many numbers an optimizer keeps for a parameter in one tensor, and which rank has them.
enum class StateForm {
  kElements,  ///< One for each element of the parameter, in its shape. They are cut like the parameter.
  kRows,      ///< One for each row of [..., rows, columns], as [..., rows, 1]. Every rank has all.
  kColumns,   ///< One for each column of [..., rows, columns], as [..., 1, columns]. Every rank has all.
  kCodes,     ///< A byte for each element of the parameter, in its shape. They are cut like the parameter.
  kScales,    ///< One for each block of kBlockElems elements, as [blocks]. They are cut like the parameter.
};

/// The elements of a block whose codes have one scale. Blocks are counted from a parameter's first element,
/// and no shard cuts one (block_elems()).
inline constexpr std::int64_t kBlockElems = 256;

/// A tensor that an optimizer keeps for each parameter of a group: bytes if they are codes, else float32.
struct StateTensor {
  std::string_view name;  ///< Its name in torch's state dict.
  double initial = 0;     ///< The value of its elements before the first step.
  StateForm form = StateForm::kElements;
  std::string_view part = {};  ///< Its name below `name`, if several tensors stand for one of torch's.

  [[nodiscard]] std::string full_name() const;
  /// Whether each rank has the part that belongs to its shard, and not all of it.
  [[nodiscard]] bool is_cut() const { return form != StateForm::kRows && form != StateForm::kColumns; }
  /// The elements of the parameter for which a tensor that is cut has one number.
  [[nodiscard]] std::int64_t elems_each() const { return form == StateForm::kScales ? kBlockElems : 1; }
  [[nodiscard]] std::int64_t bytes_each() const { return form == StateForm::kCodes ? 1 : 4; }
  /// The shape in a checkpoint for a parameter of `shape`.
  [[nodiscard]] std::vector<std::int64_t> shape_for(const std::vector<std::int64_t>& shape) const;
  [[nodiscard]] std::int64_t numel_for(const std::vector<std::int64_t>& shape) const;
};

/// The size of the blocks that a shard must not cut, for parameters with these tensors; 1 if there are none.
std::int64_t block_elems(const std::vector<StateTensor>& tensors);

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
