#include "ckpt/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "ckpt/convert_dtype.hpp"

namespace accel::ckpt {
namespace {

constexpr std::int64_t kBlockElems = std::int64_t{1} << 18;

template <class T>
double load_as(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return static_cast<double>(value);
}

// One component of an element as a number; complex numbers have two.
double value_of(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::kBool:
    case DType::kUInt8:
      return load_as<std::uint8_t>(at);
    case DType::kInt8:
      return load_as<std::int8_t>(at);
    case DType::kUInt16:
      return load_as<std::uint16_t>(at);
    case DType::kInt16:
      return load_as<std::int16_t>(at);
    case DType::kUInt32:
      return load_as<std::uint32_t>(at);
    case DType::kInt32:
      return load_as<std::int32_t>(at);
    case DType::kUInt64:
      return load_as<std::uint64_t>(at);
    case DType::kInt64:
      return load_as<std::int64_t>(at);
    case DType::kFloat32:
    case DType::kComplex64:
      return load_as<float>(at);
    case DType::kFloat64:
    case DType::kComplex128:
      return load_as<double>(at);
    default:
      break;
  }
  const DType real = dtype == DType::kComplex32 ? DType::kFloat16 : dtype;
  float value = 0;
  convert_dtype(real, {at, item_bytes(real)}, DType::kFloat32, std::as_writable_bytes(std::span(&value, 1)));
  return static_cast<double>(value);
}

bool is_complex(DType dtype) {
  return dtype == DType::kComplex32 || dtype == DType::kComplex64 || dtype == DType::kComplex128;
}

bool close(double a, double b, const Tolerance& tolerance) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return std::abs(a - b) <= tolerance.atol + tolerance.rtol * std::abs(b);
}

// The larger one; NaN is larger than all.
double larger(double a, double b) { return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b); }

class Elements {
 public:
  Elements(DType dtype, std::span<const std::byte> bytes)
      : dtype_(dtype), bytes_(bytes), item_(item_bytes(dtype)), parts_(is_complex(dtype) ? 2 : 1) {}

  [[nodiscard]] std::span<const std::byte> at(std::size_t i) const {
    return bytes_.subspan(i * item_, item_);
  }
  [[nodiscard]] std::size_t parts() const { return parts_; }
  // A real number has no imaginary part.
  [[nodiscard]] double value(std::size_t i, std::size_t part) const {
    return part < parts_ ? value_of(dtype_, bytes_.data() + i * item_ + part * (item_ / parts_)) : 0;
  }

 private:
  DType dtype_;
  std::span<const std::byte> bytes_;
  std::size_t item_;
  std::size_t parts_;
};

}  // namespace

void compare_elements(DType type_a, std::span<const std::byte> a, DType type_b, std::span<const std::byte> b,
                      const Tolerance& tolerance, std::int64_t at, Difference& difference) {
  const bool same_type = type_a == type_b;
  if (same_type && std::equal(a.begin(), a.end(), b.begin(), b.end())) return;
  const Elements left(type_a, a);
  const Elements right(type_b, b);
  const std::size_t parts = std::max(left.parts(), right.parts());
  const std::size_t count = a.size() / item_bytes(type_a);
  for (std::size_t i = 0; i < count; ++i) {
    if (same_type && std::ranges::equal(left.at(i), right.at(i))) continue;
    bool same = !(same_type && tolerance.bitwise());
    double distance = 0;
    for (std::size_t part = 0; part < parts; ++part) {
      const double x = left.value(i, part);
      const double y = right.value(i, part);
      same = same && close(x, y, tolerance);
      distance = larger(distance, x == y ? 0 : std::abs(x - y));
    }
    if (same) continue;
    ++difference.elements;
    difference.largest = larger(difference.largest, distance);
    if (difference.first < 0) difference.first = at + static_cast<std::int64_t>(i);
  }
}

TensorComparer::TensorComparer(std::filesystem::path directory_a, std::filesystem::path directory_b,
                               std::function<void(std::uint64_t)> progress)
    : reader_a_(std::move(directory_a)), reader_b_(std::move(directory_b)), progress_(std::move(progress)) {}

Difference TensorComparer::compare(const StoredTensor& a, const StoredTensor& b, const Tolerance& tolerance) {
  return run(a, b, tolerance, false);
}

Difference TensorComparer::compare_converted(const StoredTensor& a, const StoredTensor& b) {
  return run(a, b, {}, a.dtype != b.dtype);
}

Difference TensorComparer::run(const StoredTensor& a, const StoredTensor& b, const Tolerance& tolerance,
                               bool convert) {
  if (a.shape != b.shape) {
    throw Error(ErrorKind::kFailure, fmt::format("tensors of shapes {} and {} cannot be compared",
                                                 to_string(a.shape), to_string(b.shape)));
  }
  const std::int64_t numel = checked_numel(a.shape);
  Difference difference;
  for (std::int64_t at = 0; at < numel; at += kBlockElems) {
    const std::int64_t end = std::min(numel, at + kBlockElems);
    const auto count = static_cast<std::size_t>(end - at);
    bytes_a_.resize(count * item_bytes(a.dtype));
    bytes_b_.resize(count * item_bytes(b.dtype));
    reader_a_.read_range(a, at, end, bytes_a_);
    reader_b_.read_range(b, at, end, bytes_b_);
    if (convert) {
      converted_.resize(bytes_b_.size());
      convert_dtype(a.dtype, bytes_a_, b.dtype, converted_);
      compare_elements(b.dtype, converted_, b.dtype, bytes_b_, tolerance, at, difference);
    } else {
      compare_elements(a.dtype, bytes_a_, b.dtype, bytes_b_, tolerance, at, difference);
    }
    progress_(bytes_a_.size());
  }
  return difference;
}

void check_copies(const StoredTensor& tensor, TensorReader& reader) {
  const auto item = static_cast<std::int64_t>(item_bytes(tensor.dtype));
  std::vector<std::byte> first;
  std::vector<std::byte> second;
  for (const Extent& copy : tensor.copies) {
    const StoredTensor only{tensor.name, tensor.dtype, tensor.shape, {copy}};
    const std::int64_t numel = copy.box.numel();
    Difference difference;
    for (std::int64_t at = 0; at < numel; at += kBlockElems) {
      const std::int64_t end = std::min(numel, at + kBlockElems);
      first.resize(static_cast<std::size_t>((end - at) * item));
      second.resize(first.size());
      reader.read_box(tensor, copy.box, at, end, first);
      reader.read_box(only, copy.box, at, end, second);
      compare_elements(tensor.dtype, first, tensor.dtype, second, {}, at, difference);
    }
    if (difference.elements == 0) continue;
    throw Error(
        ErrorKind::kCorrupt,
        fmt::format("tensor '{}': its copy in '{}' differs in {} of {} elements of {}, at most by {:g}",
                    tensor.name, copy.file, difference.elements, numel, to_string(copy.box),
                    difference.largest))
        .hint(
            "the ranks have diverged, or their files are of different saves; no copy can be told to be "
            "right");
  }
}

}  // namespace accel::ckpt
