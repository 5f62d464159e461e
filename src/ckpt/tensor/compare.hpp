#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ckpt/tensor/box.hpp"
#include "ckpt/tensor/dtype.hpp"
#include "ckpt/tensor/stored_tensor.hpp"
#include "ckpt/tensor/tensor_reader.hpp"

namespace accel::ckpt {

/// When two elements are the same. If both numbers are 0, they must have the same bits. Otherwise they are
/// the same if |a - b| <= atol + rtol * |b|, if both are NaN, or if both are the same infinity, as for
/// torch.allclose(equal_nan=True).
struct Tolerance {
  double rtol = 0;
  double atol = 0;

  [[nodiscard]] bool bitwise() const { return rtol == 0 && atol == 0; }
};

/// How the elements of two tensors of one shape differ.
struct Difference {
  std::int64_t elements = 0;  ///< Elements that differ; 0 if the tensors are the same.
  double largest = 0;         ///< The largest |a - b|; infinite or NaN if an element is not finite.
  std::int64_t first = -1;    ///< Flat index of the first element that differs.
  /// The largest |a - b| / |b| of an element that differs, as for torch.testing.assert_close: infinite if b
  /// is 0, NaN if an element is.
  double largest_relative = 0;
  /// The sum of |a - b|^2 over all elements, also those within the tolerance.
  double squares = 0;

  /// The root of the mean of |a - b|^2 over the `numel` elements of the tensors.
  [[nodiscard]] double rms(std::int64_t numel) const;
  /// Adds the differences of other elements of the same tensors. The order changes no more than the last bits
  /// of `squares`.
  void add(const Difference& other);

  friend bool operator==(const Difference&, const Difference&) = default;
};

/// Compares two blocks with the same number of elements, of dtypes `type_a` and `type_b`; `at` is the flat
/// index of the first element. Elements of different dtypes are compared as values of float64. |a - b| of
/// 64-bit integers of one dtype is exact.
void compare_elements(DType type_a, std::span<const std::byte> a, DType type_b, std::span<const std::byte> b,
                      const Tolerance& tolerance, std::int64_t at, Difference& difference);

/// Compares stored tensors block by block, in constant memory. Several threads must not use one at the same
/// time.
class TensorComparer {
 public:
  /// Extents of A are relative to `directory_a`, those of B to `directory_b`. `progress` is called with the
  /// bytes of A that have been compared since its last call.
  TensorComparer(std::filesystem::path directory_a, std::filesystem::path directory_b,
                 std::function<void(std::uint64_t)> progress);

  /// Compares all elements. Both tensors must have the same shape.
  [[nodiscard]] Difference compare(const StoredTensor& a, const StoredTensor& b, const Tolerance& tolerance);
  /// Compares elements [begin, end). Difference::first counts from the beginning of the tensor.
  [[nodiscard]] Difference compare_range(const StoredTensor& a, const StoredTensor& b, std::int64_t begin,
                                         std::int64_t end, const Tolerance& tolerance);
  /// Converts A to B's dtype and compares the result with B: whether B is A, written with that dtype.
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

/// Throws Error (kCorrupt) if one of StoredTensor::copies differs from the tensor. `reader` reads from the
/// checkpoint's directory.
void check_copies(const StoredTensor& tensor, TensorReader& reader);

}  // namespace accel::ckpt
