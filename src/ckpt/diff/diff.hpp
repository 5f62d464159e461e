#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/progress.hpp"
#include "ckpt/diff/plan.hpp"
#include "ckpt/read/checkpoint.hpp"
#include "ckpt/tensor/compare.hpp"

namespace accel::ckpt {

/// A tensor that only one of two checkpoints has.
struct UnpairedTensor {
  std::string name;
  DType dtype = DType::kFloat32;
  Dims shape;
};

/// A tensor that both checkpoints have, with differences.
struct TensorDifference {
  std::string name;
  DType dtype_a = DType::kFloat32;
  DType dtype_b = DType::kFloat32;
  Dims shape_a;
  Dims shape_b;
  Difference values;  ///< The values are not compared, and this is empty, if the shapes differ.

  [[nodiscard]] bool other_shape() const { return shape_a != shape_b; }
  [[nodiscard]] bool other_dtype() const { return dtype_a != dtype_b; }
  /// The position of the first element that differs.
  [[nodiscard]] Dims first_position() const;
  /// Difference::rms() of the values.
  [[nodiscard]] double rms() const;
};

/// An object that has different values in the two checkpoints, or that only one of them has. The values are
/// given as text.
struct ObjectDifference {
  std::string name;
  std::optional<std::string> a;  ///< The value in A, or nothing if A does not have it.
  std::optional<std::string> b;  ///< The value in B, or nothing if B does not have it.
};

/// The result of a comparison of two checkpoints.
struct DiffResult {
  std::vector<UnpairedTensor> only_a;
  std::vector<UnpairedTensor> only_b;
  /// The tensors. Those of other shapes come first, then those with the largest differences: by the largest
  /// |a - b|, NaN before all numbers. The others are in the order of A.
  std::vector<TensorDifference> tensors;
  std::vector<ObjectDifference> objects;
  std::vector<std::string> left_out_a;  ///< Entries of A that are not under the root key: not compared.
  std::vector<std::string> left_out_b;  ///< Entries of B that are not under the root key: not compared.
  std::size_t paired_tensors = 0;       ///< The number of tensors that both have.
  std::size_t compared_tensors = 0;     ///< The number of pairs of equal shape, whose values were compared.
  std::uint64_t compared_bytes = 0;     ///< The bytes of the compared tensors in A.
  std::size_t compared_objects = 0;     ///< The number of objects that both have.

  [[nodiscard]] bool same() const {
    return only_a.empty() && only_b.empty() && tensors.empty() && objects.empty();
  }
  [[nodiscard]] std::size_t findings() const {
    return only_a.size() + only_b.size() + tensors.size() + objects.size();
  }
};

struct DiffOptions {
  Tolerance tolerance;
  bool ignore_dtype = false;  ///< Tensors with the same values in different dtypes count as equal.
  unsigned threads = 2;
};

/// The number of bytes that diff_checkpoints reads of A.
[[nodiscard]] std::uint64_t bytes_to_compare(const Checkpoint& a, const Checkpoint& b, const DiffPlan& plan);

/// Compares the pairs of `plan`. Memory does not grow with the tensors. Several threads work on a large
/// tensor together. Tensors of different dtypes are compared by value. `progress` counts bytes of A. Throws
/// what the readers throw.
[[nodiscard]] DiffResult diff_checkpoints(Checkpoint& a, Checkpoint& b, const DiffPlan& plan,
                                          const DiffOptions& options, Progress& progress);

}  // namespace accel::ckpt
