#include "ckpt/tensor/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "ckpt/tensor/convert_dtype.hpp"

namespace accel::ckpt {
namespace {

// Both sides of a block stay in the processor's cache while they are compared.
constexpr std::uint64_t kBlockBytes = std::uint64_t{256} << 10;
// Where the bytes differ, elements are compared one by one, in pieces of this many.
constexpr std::size_t kPieceElems = 1024;

std::int64_t block_elems(DType a, DType b) {
  return static_cast<std::int64_t>(kBlockBytes / std::max(item_bytes(a), item_bytes(b)));
}

bool is_complex(DType dtype) {
  return dtype == DType::kComplex32 || dtype == DType::kComplex64 || dtype == DType::kComplex128;
}

// The numbers of one piece. A complex element is two numbers: its real and its imaginary part.
using Numbers = std::array<double, 2 * kPieceElems>;

template <class T>
void load(std::span<const std::byte> bytes, Numbers& numbers) {
  for (std::size_t i = 0; i < bytes.size() / sizeof(T); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    numbers[i] = static_cast<double>(value);
  }
}

void load(DType dtype, std::span<const std::byte> bytes, Numbers& numbers) {
  switch (dtype) {
    case DType::kBool:
    case DType::kUInt8:
      return load<std::uint8_t>(bytes, numbers);
    case DType::kInt8:
      return load<std::int8_t>(bytes, numbers);
    case DType::kUInt16:
      return load<std::uint16_t>(bytes, numbers);
    case DType::kInt16:
      return load<std::int16_t>(bytes, numbers);
    case DType::kUInt32:
      return load<std::uint32_t>(bytes, numbers);
    case DType::kInt32:
      return load<std::int32_t>(bytes, numbers);
    case DType::kUInt64:
      return load<std::uint64_t>(bytes, numbers);
    case DType::kInt64:
      return load<std::int64_t>(bytes, numbers);
    case DType::kFloat64:
    case DType::kComplex128:
      return load<double>(bytes, numbers);
    default:
      break;
  }
  const DType real = dtype == DType::kComplex32   ? DType::kFloat16
                     : dtype == DType::kComplex64 ? DType::kFloat32
                                                  : dtype;
  const std::span<double> target = std::span(numbers).first(bytes.size() / item_bytes(real));
  convert_dtype(real, bytes, DType::kFloat64, std::as_writable_bytes(target));
}

// The absolute value of a complex number. std::hypot of two doubles is a symbol of glibc 2.35, which a wheel
// must not need.
double length(double real, double imaginary) {
  return static_cast<double>(std::hypot(static_cast<long double>(real), static_cast<long double>(imaginary)));
}

// How far apart two elements are.
struct Pair {
  double distance;     // The value of |a - b|; 0 for two infinities of one sign.
  double magnitude_b;  // The value of |b|.
  bool both_nan;

  // 0 / 0 is that of -0.0 and 0.0, whose values are equal.
  [[nodiscard]] double relative() const { return distance == 0 ? 0 : distance / magnitude_b; }
};

// `parts` is 2 if either side is complex; a real number has no imaginary part.
class Pairs {
 public:
  Pairs(DType type_a, std::span<const std::byte> a, DType type_b, std::span<const std::byte> b)
      : parts_a_(is_complex(type_a) ? 2 : 1), parts_b_(is_complex(type_b) ? 2 : 1) {
    load(type_a, a, a_);
    load(type_b, b, b_);
  }

  [[nodiscard]] Pair at(std::size_t i) const {
    const double a = a_[i * parts_a_];
    const double b = b_[i * parts_b_];
    if (parts_a_ + parts_b_ == 2) {
      return {a == b ? 0 : std::abs(a - b), std::abs(b), std::isnan(a) && std::isnan(b)};
    }
    const double a_imag = parts_a_ == 2 ? a_[2 * i + 1] : 0;
    const double b_imag = parts_b_ == 2 ? b_[2 * i + 1] : 0;
    const bool nan_a = std::isnan(a) || std::isnan(a_imag);
    const bool nan_b = std::isnan(b) || std::isnan(b_imag);
    return {length(a == b ? 0 : a - b, a_imag == b_imag ? 0 : a_imag - b_imag), length(b, b_imag),
            nan_a && nan_b};
  }

 private:
  std::size_t parts_a_;
  std::size_t parts_b_;
  Numbers a_;
  Numbers b_;
};

// Integers of 64 bits are subtracted as integers: in float64, neighbours beyond 2^53 are equal.
template <class T>
class ExactPairs {
 public:
  ExactPairs(std::span<const std::byte> a, std::span<const std::byte> b) : a_(a), b_(b) {}

  [[nodiscard]] Pair at(std::size_t i) const {
    T a;
    T b;
    std::memcpy(&a, a_.data() + i * sizeof(T), sizeof(T));
    std::memcpy(&b, b_.data() + i * sizeof(T), sizeof(T));
    const auto distance = a > b ? static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b)
                                : static_cast<std::uint64_t>(b) - static_cast<std::uint64_t>(a);
    return {static_cast<double>(distance), std::abs(static_cast<double>(b)), false};
  }

 private:
  std::span<const std::byte> a_;
  std::span<const std::byte> b_;
};

// Elements that are bytes have no distance.
struct OpaquePairs {
  [[nodiscard]] static Pair at(std::size_t) { return {NAN, NAN, false}; }
};

bool close(const Pair& pair, const Tolerance& tolerance) {
  if (pair.both_nan || pair.distance == 0) return true;
  return std::isfinite(pair.distance) && pair.distance <= tolerance.atol + tolerance.rtol * pair.magnitude_b;
}

// The larger of the two. NaN is larger than any number.
double larger(double a, double b) { return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b); }

struct Piece {
  DType type_a;
  std::span<const std::byte> a;
  DType type_b;
  std::span<const std::byte> b;
  std::int64_t at;  // The flat index of its first element.
};

template <class SomePairs>
void compare_piece(const SomePairs& pairs, const Piece& piece, const Tolerance& tolerance,
                   Difference& difference) {
  const bool same_type = piece.type_a == piece.type_b;
  const std::size_t item = item_bytes(piece.type_a);
  for (std::size_t i = 0; i < piece.a.size() / item; ++i) {
    if (same_type && std::memcmp(piece.a.data() + i * item, piece.b.data() + i * item, item) == 0) continue;
    const Pair pair = pairs.at(i);
    if (!pair.both_nan) difference.squares += pair.distance * pair.distance;
    if (!(same_type && tolerance.bitwise()) && close(pair, tolerance)) continue;
    ++difference.elements;
    difference.largest = larger(difference.largest, pair.distance);
    difference.largest_relative = larger(difference.largest_relative, pair.relative());
    if (difference.first < 0) difference.first = piece.at + static_cast<std::int64_t>(i);
  }
}

void compare_piece(const Piece& piece, const Tolerance& tolerance, Difference& difference) {
  if (piece.type_a == piece.type_b && piece.type_a == DType::kInt64) {
    compare_piece(ExactPairs<std::int64_t>(piece.a, piece.b), piece, tolerance, difference);
  } else if (piece.type_a == piece.type_b && piece.type_a == DType::kUInt64) {
    compare_piece(ExactPairs<std::uint64_t>(piece.a, piece.b), piece, tolerance, difference);
  } else if (is_opaque(piece.type_a) || is_opaque(piece.type_b)) {
    compare_piece(OpaquePairs(), piece, tolerance, difference);
  } else {
    compare_piece(Pairs(piece.type_a, piece.a, piece.type_b, piece.b), piece, tolerance, difference);
  }
}

bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

}  // namespace

double Difference::rms(std::int64_t numel) const {
  return numel == 0 ? 0 : std::sqrt(squares / static_cast<double>(numel));
}

void Difference::add(const Difference& other) {
  squares += other.squares;
  if (other.elements == 0) return;
  elements += other.elements;
  largest = larger(largest, other.largest);
  largest_relative = larger(largest_relative, other.largest_relative);
  first = first < 0 ? other.first : std::min(first, other.first);
}

void compare_elements(DType type_a, std::span<const std::byte> a, DType type_b, std::span<const std::byte> b,
                      const Tolerance& tolerance, std::int64_t at, Difference& difference) {
  const std::size_t item_a = item_bytes(type_a);
  const std::size_t item_b = item_bytes(type_b);
  const std::size_t count = a.size() / item_a;
  if (a.size() != count * item_a || b.size() != count * item_b) {
    throw Error(ErrorKind::kFailure, fmt::format("{} bytes of {} cannot be compared with {} bytes of {}",
                                                 a.size(), torch_name(type_a), b.size(), torch_name(type_b)));
  }
  if (type_a == type_b && same_bytes(a, b)) return;
  for (std::size_t i = 0; i < count; i += kPieceElems) {
    const std::size_t elems = std::min(kPieceElems, count - i);
    const Piece piece{type_a, a.subspan(i * item_a, elems * item_a), type_b,
                      b.subspan(i * item_b, elems * item_b), at + static_cast<std::int64_t>(i)};
    if (type_a == type_b && same_bytes(piece.a, piece.b)) continue;
    compare_piece(piece, tolerance, difference);
  }
}

TensorComparer::TensorComparer(std::filesystem::path directory_a, std::filesystem::path directory_b,
                               std::function<void(std::uint64_t)> progress)
    : reader_a_(std::move(directory_a)), reader_b_(std::move(directory_b)), progress_(std::move(progress)) {}

Difference TensorComparer::compare(const StoredTensor& a, const StoredTensor& b, const Tolerance& tolerance) {
  return run(a, b, 0, checked_numel(a.shape), tolerance, false);
}

Difference TensorComparer::compare_range(const StoredTensor& a, const StoredTensor& b, std::int64_t begin,
                                         std::int64_t end, const Tolerance& tolerance) {
  return run(a, b, begin, end, tolerance, false);
}

Difference TensorComparer::compare_converted(const StoredTensor& a, const StoredTensor& b) {
  return run(a, b, 0, checked_numel(a.shape), {}, a.dtype != b.dtype);
}

Difference TensorComparer::run(const StoredTensor& a, const StoredTensor& b, std::int64_t begin,
                               std::int64_t end, const Tolerance& tolerance, bool convert) {
  if (a.shape != b.shape) {
    throw Error(ErrorKind::kFailure, fmt::format("tensors of shapes {} and {} cannot be compared",
                                                 to_string(a.shape), to_string(b.shape)));
  }
  const std::int64_t block = block_elems(a.dtype, b.dtype);
  Difference difference;
  for (std::int64_t at = begin; at < end; at += block) {
    const std::int64_t next = std::min(end, at + block);
    const auto count = static_cast<std::size_t>(next - at);
    bytes_a_.resize(count * item_bytes(a.dtype));
    bytes_b_.resize(count * item_bytes(b.dtype));
    reader_a_.read_range(a, at, next, bytes_a_);
    reader_b_.read_range(b, at, next, bytes_b_);
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
  const std::int64_t block = block_elems(tensor.dtype, tensor.dtype);
  std::vector<std::byte> first;
  std::vector<std::byte> second;
  for (const Extent& copy : tensor.copies) {
    const StoredTensor only{tensor.name, tensor.dtype, tensor.shape, {copy}};
    const std::int64_t numel = copy.box.numel();
    Difference difference;
    for (std::int64_t at = 0; at < numel; at += block) {
      const std::int64_t end = std::min(numel, at + block);
      first.resize(static_cast<std::size_t>((end - at) * item));
      second.resize(first.size());
      reader.read_box(tensor, copy.box, at, end, first);
      reader.read_box(only, copy.box, at, end, second);
      compare_elements(tensor.dtype, first, tensor.dtype, second, {}, at, difference);
    }
    if (difference.elements == 0) continue;
    throw Error(
        ErrorKind::kCorrupt,
        fmt::format("tensor '{}': its copy in '{}' differs in {} of {} elements of {}{}", tensor.name,
                    copy.file, difference.elements, numel, to_string(copy.box),
                    is_opaque(tensor.dtype) ? "" : fmt::format(", at most by {:g}", difference.largest)))
        .hint(
            "the ranks have diverged, or their files are of different saves; no copy can be told to be "
            "right");
  }
}

}  // namespace accel::ckpt
