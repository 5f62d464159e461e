#include "ckpt/write/update_reader.hpp"

#include <utility>

#include "base/checked.hpp"
#include "ckpt/tensor/convert_dtype.hpp"
#include "ckpt/tensor/low_rank.hpp"

namespace accel::ckpt {
namespace {

/// The transpose of a row-major matrix [rows, columns].
std::vector<float> transposed(const std::vector<float>& matrix, std::int64_t rows, std::int64_t columns) {
  std::vector<float> result(matrix.size());
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      result[static_cast<std::size_t>(column * rows + row)] =
          matrix[static_cast<std::size_t>(row * columns + column)];
    }
  }
  return result;
}

}  // namespace

StoredTensor UpdateReader::locate(std::size_t tensor) { return source_.locate(tensor, reader_.files()); }

std::vector<float> UpdateReader::read(const StoredTensor& tensor, const Box& box) {
  const std::int64_t count = box.numel();
  std::vector<float> floats(static_cast<std::size_t>(count));
  const std::span<std::byte> out = std::as_writable_bytes(std::span(floats));
  if (tensor.dtype == DType::kFloat32) {
    reader_.read_box(tensor, box, 0, count, out);
    return floats;
  }
  std::vector<std::byte> stored(checked_nbytes(box.sizes, item_bytes(tensor.dtype)));
  reader_.read_box(tensor, box, 0, count, stored);
  convert_dtype(tensor.dtype, stored, DType::kFloat32, out);
  return floats;
}

void UpdateReader::add(const LowRankUpdate& update, std::int64_t begin, std::span<float> values) {
  if (values.empty()) return;
  if (update_ != update) {
    update_.reset();
    const StoredTensor a = locate(update.a);
    const StoredTensor b = locate(update.b);
    rank_ = a.shape.at(0);
    // The product is B @ A, or A^T @ B^T if it is transposed.
    columns_ = update.transposed ? b.shape.at(0) : a.shape.at(1);
    right_ = read(update.transposed ? b : a, Box::whole(update.transposed ? b.shape : a.shape));
    if (update.transposed) right_ = transposed(right_, columns_, rank_);
    by_rows_ = update.transposed ? a : b;
    update_ = update;
  }
  const std::int64_t first = begin / columns_;
  const std::int64_t count = (begin + static_cast<std::int64_t>(values.size()) - 1) / columns_ - first + 1;
  const Box rows = update.transposed ? Box{{0, first}, {rank_, count}} : Box{{first, 0}, {count, rank_}};
  std::vector<float> left = read(by_rows_, rows);
  if (update.transposed) left = transposed(left, rank_, count);
  add_low_rank({left, right_, rank_, columns_, static_cast<float>(update.scaling)}, begin - first * columns_,
               values);
}

}  // namespace accel::ckpt
