#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ckpt/tensor/box.hpp"
#include "ckpt/tensor/dtype.hpp"
#include "ckpt/tensor/stored_tensor.hpp"
#include "ckpt/tensor/tensor_reader.hpp"

namespace accel::ckpt {

/// What counts as the same. Both 0: the same bits. Otherwise a pair is the same if
/// |a - b| <= atol + rtol * |b|, if both are NaN, or the same infinity, as torch.allclose(equal_nan=True)
/// says.
struct Tolerance {
  double rtol = 0;
  double atol = 0;

  [[nodiscard]] bool bitwise() const { return rtol == 0 && atol == 0; }
};

/// How the elements of two tensors of one shape differ.
struct Difference {
  std::int64_t elements = 0;  ///< That are not the same; 0: the tensors are the same.
  double largest = 0;         ///< |a - b| among them; infinite or NaN if one of a pair is not finite.
  std::int64_t first = -1;    ///< Flat index of the first.

  /// Takes in what was found in other elements of the same tensors, in any order.
  void add(const Difference& other);

  friend bool operator==(const Difference&, const Difference&) = default;
};

/// Compares blocks of elements of dtypes `type_a` and `type_b`, of as many elements each; `at` is the flat
/// index of the first. Of two different dtypes the values are compared, in float64; |a - b| of 64-bit
/// integers of one dtype is exact.
void compare_elements(DType type_a, std::span<const std::byte> a, DType type_b, std::span<const std::byte> b,
                      const Tolerance& tolerance, std::int64_t at, Difference& difference);

/// Compares tensors that are stored in any way, block by block in constant memory. Not for use by several
/// threads at once.
class TensorComparer {
 public:
  /// The directories that the extents of either side are relative to. `progress` is told of the bytes of A
  /// that have been compared.
  TensorComparer(std::filesystem::path directory_a, std::filesystem::path directory_b,
                 std::function<void(std::uint64_t)> progress);

  /// Both must have the same shape.
  [[nodiscard]] Difference compare(const StoredTensor& a, const StoredTensor& b, const Tolerance& tolerance);
  /// As compare, of elements [begin, end) alone; `first` still counts from the beginning of the tensor.
  [[nodiscard]] Difference compare_range(const StoredTensor& a, const StoredTensor& b, std::int64_t begin,
                                         std::int64_t end, const Tolerance& tolerance);
  /// As compare, after A has been converted to B's dtype: whether B is what writing A as that dtype gives.
  [[nodiscard]] Difference compare_converted(const StoredTensor& a, const StoredTensor& b);

 private:
  [[nodiscard]] Difference run(const StoredTensor& a, const StoredTensor& b, std::int64_t begin,
                               std::int64_t end, const Tolerance& tolerance, bool convert);

  TensorReader reader_a_;
  TensorReader reader_b_;
  std::function<void(std::uint64_t)> progress_;
  std::vector<std::byte> bytes_a_;
  std::vector<std::byte> bytes_b_;
  std::vector<std::byte> converted_;
};

/// Throws Error (kCorrupt) if one of the tensor's copies differs from what it is a copy of; `reader` reads
/// from the checkpoint's directory.
void check_copies(const StoredTensor& tensor, TensorReader& reader);

}  // namespace accel::ckpt
