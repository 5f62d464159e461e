#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ckpt/plan/output_plan.hpp"
#include "ckpt/read/checkpoint.hpp"
#include "ckpt/tensor/tensor_reader.hpp"

namespace accel::ckpt {

/// Reads the factors of low-rank updates, and adds the updates to tensors. It keeps the factor of the last
/// update that all rows need, in float32; of the other one it reads the rows that are asked for. Each thread
/// needs its own.
class UpdateReader {
 public:
  UpdateReader(const Checkpoint& source, TensorReader& reader) : source_(source), reader_(reader) {}

  /// Adds the update to `values`, the elements of the matrix from `begin` on. The matrix must have the shape
  /// of the update.
  void add(const LowRankUpdate& update, std::int64_t begin, std::span<float> values);

 private:
  [[nodiscard]] StoredTensor locate(std::size_t tensor);
  [[nodiscard]] std::vector<float> read(const StoredTensor& tensor, const Box& box);

  const Checkpoint& source_;
  TensorReader& reader_;
  std::optional<LowRankUpdate> update_;  ///< The update to which the members below belong.
  StoredTensor by_rows_;                 ///< The factor that is read in parts.
  std::int64_t rank_ = 0;
  std::int64_t columns_ = 0;
  std::vector<float> right_;  ///< The other factor, [rank, columns].
};

}  // namespace accel::ckpt
