#include "ckpt/tensor/box.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "base/checked.hpp"
#include "base/error.hpp"

namespace accel::ckpt {
namespace {

// Appends the boxes of flat elements [begin, end) of the sub-tensor that `prefix` (one index for each of the
// first dimensions) selects.
void append_boxes(const Dims& shape, const Dims& prefix, std::int64_t begin, std::int64_t end,
                  std::vector<Box>& boxes) {
  if (begin == end) return;
  const std::size_t dim = prefix.size();
  const std::span<const std::int64_t> inner_shape = std::span(shape).subspan(std::min(dim + 1, shape.size()));
  const std::int64_t inner = checked_numel(inner_shape);

  // Box of rows [first, last) of this dimension, whole in all dimensions further in.
  const auto whole_rows = [&](std::int64_t first, std::int64_t last) {
    Box box{prefix, Dims(dim, 1)};
    if (dim < shape.size()) {
      box.offsets.push_back(first);
      box.sizes.push_back(last - first);
      box.offsets.resize(shape.size(), 0);
      box.sizes.insert(box.sizes.end(), inner_shape.begin(), inner_shape.end());
    }
    boxes.push_back(std::move(box));
  };
  if (dim >= shape.size()) {
    whole_rows(0, 1);
    return;
  }

  const auto partial_row = [&](std::int64_t row, std::int64_t first, std::int64_t last) {
    Dims inner_prefix = prefix;
    inner_prefix.push_back(row);
    append_boxes(shape, inner_prefix, first, last, boxes);
  };
  const std::int64_t first_row = begin / inner;
  const std::int64_t last_row = end / inner;
  if (first_row == last_row) {
    partial_row(first_row, begin % inner, end % inner);
    return;
  }
  std::int64_t whole_begin = first_row;
  if (begin % inner != 0) {
    partial_row(first_row, begin % inner, inner);
    ++whole_begin;
  }
  if (whole_begin < last_row) whole_rows(whole_begin, last_row);
  if (end % inner != 0) partial_row(last_row, 0, end % inner);
}

}  // namespace

Box Box::whole(const Dims& shape) { return {Dims(shape.size(), 0), shape}; }

std::int64_t Box::numel() const { return checked_numel(sizes); }

std::int64_t BoxView::numel() const { return checked_numel(sizes); }

Box BoxView::copy() const { return {Dims(offsets.begin(), offsets.end()), Dims(sizes.begin(), sizes.end())}; }

std::vector<Box> boxes_of_range(const Dims& shape, std::int64_t begin, std::int64_t end) {
  const std::int64_t numel = checked_numel(shape);
  if (begin < 0 || begin > end || end > numel) {
    throw Error(ErrorKind::kCorrupt, fmt::format("elements {} to {} are asked for, but shape {} has {}",
                                                 begin, end, to_string(shape), numel));
  }
  std::vector<Box> boxes;
  append_boxes(shape, {}, begin, end, boxes);
  return boxes;
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  Box shared;
  shared.offsets.reserve(a.offsets.size());
  shared.sizes.reserve(a.offsets.size());
  for (std::size_t d = 0; d < a.offsets.size(); ++d) {
    const std::int64_t begin = std::max(a.offsets[d], b.offsets[d]);
    const std::int64_t end = std::min(a.offsets[d] + a.sizes[d], b.offsets[d] + b.sizes[d]);
    if (begin >= end) return std::nullopt;
    shared.offsets.push_back(begin);
    shared.sizes.push_back(end - begin);
  }
  return shared;
}

bool overlap(BoxView a, BoxView b) {
  for (std::size_t d = 0; d < a.offsets.size(); ++d) {
    const std::int64_t begin = std::max(a.offsets[d], b.offsets[d]);
    const std::int64_t end = std::min(a.offsets[d] + a.sizes[d], b.offsets[d] + b.sizes[d]);
    if (begin >= end) return false;
  }
  return true;
}

Dims row_major_strides(const Dims& shape) {
  Dims strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) strides[d - 1] = checked_mul(strides[d], shape[d]);
  return strides;
}

std::int64_t flat_index(const Dims& shape, const Dims& position) {
  const Dims strides = row_major_strides(shape);
  return std::inner_product(position.begin(), position.end(), strides.begin(), std::int64_t{0});
}

void check_within(BoxView box, std::span<const std::int64_t> shape) {
  const auto reject = [&](std::string_view why) {
    throw Error(ErrorKind::kCorrupt,
                fmt::format("box with offsets {} and sizes {} {} shape {}", to_string(box.offsets),
                            to_string(box.sizes), why, to_string(shape)));
  };
  if (box.offsets.size() != shape.size() || box.sizes.size() != shape.size())
    reject("has not the dimensions of");
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const bool inside = box.offsets[d] >= 0 && box.sizes[d] >= 0 && box.offsets[d] <= shape[d] &&
                        box.sizes[d] <= shape[d] - box.offsets[d];
    if (!inside) reject("does not lie within");
  }
}

std::string to_string(std::span<const std::int64_t> dims) {
  return fmt::format("[{}]", fmt::join(dims, ", "));
}

std::string to_string(BoxView box) {
  std::vector<std::string> ranges;
  for (std::size_t d = 0; d < box.offsets.size(); ++d) {
    ranges.push_back(fmt::format("{}:{}", box.offsets[d], box.offsets[d] + box.sizes[d]));
  }
  return fmt::format("[{}]", fmt::join(ranges, ", "));
}

}  // namespace accel::ckpt
