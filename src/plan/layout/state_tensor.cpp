#include "plan/layout/state_tensor.hpp"

#include <algorithm>

#include "base/checked.hpp"

namespace accel {

std::string StateTensor::full_name() const {
  return part.empty() ? std::string(name) : std::string(name) + "." + std::string(part);
}

std::vector<std::int64_t> StateTensor::shape_for(const std::vector<std::int64_t>& shape) const {
  if (form == StateForm::kScales) return {checked_numel(shape) / kBlockElems};
  std::vector<std::int64_t> result = shape;
  if (form == StateForm::kRows) result.at(shape.size() - 1) = 1;
  if (form == StateForm::kColumns) result.at(shape.size() - 2) = 1;
  return result;
}

std::int64_t StateTensor::numel_for(const std::vector<std::int64_t>& shape) const {
  return checked_numel(shape_for(shape));
}

std::int64_t block_elems(const std::vector<StateTensor>& tensors) {
  const bool has_scales = std::any_of(tensors.begin(), tensors.end(), [](const StateTensor& tensor) {
    return tensor.form == StateForm::kScales;
  });
  return has_scales ? kBlockElems : 1;
}

std::int64_t state_bytes_of(const std::vector<StateTensor>& tensors, const std::vector<std::int64_t>& shape) {
  std::int64_t bytes = 0;
  for (const StateTensor& tensor : tensors)
    bytes = checked_add(bytes, checked_mul(tensor.numel_for(shape), tensor.bytes_each()));
  return bytes;
}

std::int64_t numel_on_rank(const StateTensor& tensor, const FlatLayout& layout, const GroupRange& range,
                           int shard) {
  return tensor.is_cut() ? range.in_shard(layout, shard).size() / tensor.elems_each()
                         : offset_on_rank(tensor, layout, range, range.end);
}

std::int64_t offset_on_rank(const StateTensor& tensor, const FlatLayout& layout, const GroupRange& range,
                            std::size_t parameter) {
  std::int64_t offset = 0;
  for (std::size_t i = range.first; i < parameter; ++i)
    offset = checked_add(offset, tensor.numel_for(layout.parameters[i].spec.shape));
  return offset;
}

std::vector<std::int64_t> as_matrices(const std::vector<std::int64_t>& shape) {
  const std::vector<std::int64_t> outer(shape.begin(), shape.end() - 2);
  return {checked_numel(outer), shape.at(shape.size() - 2), shape.back()};
}

std::vector<ckpt::Box> matrix_blocks(const std::vector<std::int64_t>& shape, const ElementRange& elements) {
  return ckpt::boxes_of_range(as_matrices(shape), elements.begin, elements.end);
}

}  // namespace accel
