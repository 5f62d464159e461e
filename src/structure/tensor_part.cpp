#include "structure/tensor_part.hpp"

#include <algorithm>

#include "base/checked.hpp"

namespace accel {

std::vector<std::int64_t> shape_of_part(std::vector<std::int64_t> shape, const TensorPart& part) {
  shape.at(part.dim) = part.size;
  return shape;
}

std::vector<PartRun> runs_of_part(const std::vector<std::int64_t>& shape, const TensorPart& part,
                                  std::int64_t begin, std::int64_t end) {
  const std::vector<std::int64_t> inner(shape.begin() + static_cast<std::ptrdiff_t>(part.dim) + 1,
                                        shape.end());
  const std::int64_t step = checked_numel(inner);
  // The elements of a part that lie behind one another, and how far its next ones are in the whole.
  const std::int64_t block = checked_mul(part.size, step);
  const std::int64_t whole_block = checked_mul(part.whole, step);
  std::vector<PartRun> runs;
  while (begin < end) {
    const std::int64_t row = begin / block;
    const std::int64_t stop = std::min(end, (row + 1) * block);
    const std::int64_t in_whole = row * whole_block + part.begin * step + begin % block;
    if (!runs.empty() && runs.back().in_whole + runs.back().count == in_whole) {
      runs.back().count += stop - begin;
    } else {
      runs.push_back({in_whole, begin, stop - begin});
    }
    begin = stop;
  }
  return runs;
}

std::optional<std::int64_t> index_in_part(const std::vector<std::int64_t>& shape, const TensorPart& part,
                                          std::int64_t in_whole) {
  const std::int64_t step =
      checked_numel({shape.begin() + static_cast<std::ptrdiff_t>(part.dim) + 1, shape.end()});
  const std::int64_t block = part.whole * step;
  const std::int64_t in_block = in_whole % block - part.begin * step;
  if (in_block < 0 || in_block >= part.size * step) return std::nullopt;
  return in_whole / block * (part.size * step) + in_block;
}

}  // namespace accel
