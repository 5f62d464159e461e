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

/// A tensor that both have, but not the same.
struct TensorDifference {
  std::string name;
  DType dtype_a = DType::kFloat32;
  DType dtype_b = DType::kFloat32;
  Dims shape_a;
  Dims shape_b;
  Difference values;  ///< Of tensors of one shape; others are not compared.

  [[nodiscard]] bool other_shape() const { return shape_a != shape_b; }
  [[nodiscard]] bool other_dtype() const { return dtype_a != dtype_b; }
  /// Where the first of `values` is.
  [[nodiscard]] Dims first_position() const;
};

/// An object that both have with different values, or only one. Each side's value in words.
struct ObjectDifference {
  std::string name;
  std::optional<std::string> a;  ///< Nothing: it is not there.
  std::optional<std::string> b;
};

/// What a comparison of two checkpoints has found.
struct DiffResult {
  std::vector<UnpairedTensor> only_a;
  std::vector<UnpairedTensor> only_b;
  std::vector<TensorDifference> tensors;  ///< In A's order.
  std::vector<ObjectDifference> objects;
  std::vector<std::string> left_out_a;  ///< Not compared, as they are not under the root key.
  std::vector<std::string> left_out_b;
  std::size_t paired_tensors = 0;    ///< That both have.
  std::size_t compared_tensors = 0;  ///< Whose values were compared, as their shapes agree,
  std::uint64_t compared_bytes = 0;  ///< with these bytes in A.
  std::size_t compared_objects = 0;

  [[nodiscard]] bool same() const {
    return only_a.empty() && only_b.empty() && tensors.empty() && objects.empty();
  }
  [[nodiscard]] std::size_t findings() const {
    return only_a.size() + only_b.size() + tensors.size() + objects.size();
  }
};

struct DiffOptions {
  Tolerance tolerance;
  bool ignore_dtype = false;  ///< Another dtype with the same values is no difference.
  unsigned threads = 2;
};

/// The bytes of A that diff_checkpoints will read.
[[nodiscard]] std::uint64_t bytes_to_compare(const Checkpoint& a, const Checkpoint& b, const DiffPlan& plan);

/// Compares what `plan` has paired. Memory does not grow with the tensors; large ones are shared between the
/// threads. Tensors of different dtypes are compared by value. `progress` counts bytes of A. Throws Error,
/// what the readers throw.
[[nodiscard]] DiffResult diff_checkpoints(Checkpoint& a, Checkpoint& b, const DiffPlan& plan,
                                          const DiffOptions& options, Progress& progress);

}  // namespace accel::ckpt
