#include "ckpt/tensor/compare.hpp"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "ckpt/tensor/convert_dtype.hpp"
#include "fake_checkpoint.hpp"

namespace accel::ckpt {
namespace {

using testing::bytes_of;
using testing::error_of;
using ::testing::HasSubstr;
using testing::Scatter;
using testing::TempDir;
using testing::Truth;

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();

/// How many elements differ, at most by how much, and the first; the measures of all have tests of their own.
struct Found {
  std::int64_t elements = 0;
  double largest = 0;
  std::int64_t first = -1;
};

bool operator==(const Difference& a, const Found& b) {
  return a.elements == b.elements && a.largest == b.largest && a.first == b.first;
}

template <class A, class B>
Difference difference_of(DType type_a, const std::vector<A>& a, DType type_b, const std::vector<B>& b,
                         const Tolerance& tolerance = {}) {
  Difference difference;
  compare_elements(type_a, std::as_bytes(std::span(a)), type_b, std::as_bytes(std::span(b)), tolerance, 0,
                   difference);
  return difference;
}

Difference doubles(const std::vector<double>& a, const std::vector<double>& b,
                   const Tolerance& tolerance = {}) {
  return difference_of(DType::kFloat64, a, DType::kFloat64, b, tolerance);
}

TEST(CompareElementsTest, TheSame) {
  EXPECT_EQ(doubles({}, {}), Found{});
  EXPECT_EQ(doubles({1, kNan, -kInf, 0}, {1, kNan, -kInf, 0}), Found{});
  EXPECT_EQ(doubles({1, kNan, -kInf, 0}, {1, kNan, -kInf, 0}, {.rtol = 1}), Found{});
}

TEST(CompareElementsTest, CountsAndPlaces) {
  EXPECT_EQ(doubles({1, 2, 3, 4}, {1, 2.5, 3, 1}), (Found{2, 3, 1}));
  Difference difference;
  const std::vector<double> a{1, 2};
  const std::vector<double> b{0, 2};
  compare_elements(DType::kFloat64, std::as_bytes(std::span(a)), DType::kFloat64, std::as_bytes(std::span(b)),
                   {}, 700, difference);
  compare_elements(DType::kFloat64, std::as_bytes(std::span(b)), DType::kFloat64, std::as_bytes(std::span(a)),
                   {}, 800, difference);
  EXPECT_EQ(difference, (Found{2, 1, 700}));
}

TEST(CompareElementsTest, RelativeIsOfTheElementsThatDiffer) {
  EXPECT_EQ(doubles({1, 2, 3}, {1, 4, 2.5}).largest_relative, 0.5);
  EXPECT_EQ(doubles({2, 3}, {4, 2.5}, {.atol = 1}).largest_relative, 0.5);
  EXPECT_EQ(doubles({2, 3}, {4, 2.5}, {.rtol = 0.5}).largest_relative, 0);
  EXPECT_EQ(doubles({1, 5}, {0, 5}).largest_relative, kInf);
  EXPECT_EQ(doubles({0.0}, {-0.0}).largest_relative, 0);
  EXPECT_TRUE(std::isnan(doubles({1, kNan, 3}, {2, 1, 4}).largest_relative));
}

TEST(CompareElementsTest, TheRootMeanSquareIsOfAllElements) {
  const Difference exact = doubles({1, 2, 3, 4}, {1, 5, 3, 8});
  EXPECT_EQ(exact.squares, 9 + 16);
  EXPECT_EQ(exact.rms(4), 2.5);
  // Elements within the tolerance count, too.
  EXPECT_EQ(doubles({1, 2, 3, 4}, {1, 5, 3, 8}, {.atol = 3}).rms(4), 2.5);
  EXPECT_EQ(doubles({1, kNan}, {1, kNan}).rms(2), 0);
  EXPECT_EQ(Difference{}.rms(0), 0);
  Difference sum = doubles({1}, {1});
  sum.add(doubles({2, 3}, {5, 7}));
  EXPECT_EQ(sum.squares, 25);
}

TEST(CompareElementsTest, BitwiseIsAboutBits) {
  EXPECT_EQ(doubles({0.0}, {-0.0}), (Found{1, 0, 0}));
  const double other_nan = std::bit_cast<double>(std::bit_cast<std::uint64_t>(kNan) + 1);
  const Difference nans = doubles({kNan}, {other_nan});
  EXPECT_EQ(nans.elements, 1);
  EXPECT_TRUE(std::isnan(nans.largest));
  EXPECT_EQ(doubles({kNan, 0.0}, {other_nan, -0.0}, {.atol = 1e-300}), Found{});
}

TEST(CompareElementsTest, ToleranceIsRelativeToB) {
  EXPECT_EQ(doubles({10}, {9}, {.rtol = 0.1}), (Found{1, 1, 0}));
  EXPECT_EQ(doubles({9}, {10}, {.rtol = 0.1}), Found{});
  EXPECT_EQ(doubles({-9}, {-10}, {.rtol = 0.1}), Found{});
  EXPECT_EQ(doubles({1.5}, {1}, {.atol = 0.5}), Found{});
  EXPECT_EQ(doubles({1.5}, {1}, {.rtol = 0.25, .atol = 0.25}), Found{});
  EXPECT_EQ(doubles({1.5, 2}, {1, 1}, {.rtol = 0.25, .atol = 0.125}), (Found{2, 1, 0}));
}

TEST(CompareElementsTest, WhatIsNotFinite) {
  EXPECT_EQ(doubles({kInf}, {kInf}, {.atol = 1}), Found{});
  for (const auto& [a, b] : {std::pair(kInf, -kInf), std::pair(kInf, 1.0), std::pair(1.0, -kInf)}) {
    EXPECT_EQ(doubles({a}, {b}, {.rtol = 10, .atol = 10}), (Found{1, kInf, 0})) << a << " " << b;
  }
  for (const auto& [a, b] : {std::pair(kNan, 1.0), std::pair(1.0, kNan), std::pair(kInf, kNan)}) {
    const Difference difference = doubles({a, 5}, {b, 1}, {.rtol = 10, .atol = 10});
    EXPECT_EQ(difference.elements, 1);
    EXPECT_TRUE(std::isnan(difference.largest)) << a << " " << b;
  }
  // NaN is the largest, whether it comes before or after a number.
  EXPECT_TRUE(std::isnan(doubles({1, kNan, 3}, {2, 1, 4}).largest));
}

TEST(CompareElementsTest, LargeIntegersAreExact) {
  constexpr std::int64_t kLarge = std::int64_t{1} << 60;
  using Signed = std::vector<std::int64_t>;
  using Unsigned = std::vector<std::uint64_t>;
  EXPECT_EQ(difference_of(DType::kInt64, Signed{kLarge}, DType::kInt64, Signed{kLarge + 1}),
            (Found{1, 1, 0}));
  EXPECT_EQ(difference_of(DType::kInt64, Signed{kLarge}, DType::kInt64, Signed{kLarge + 1}, {.atol = 0.5}),
            (Found{1, 1, 0}));
  EXPECT_EQ(difference_of(DType::kInt64, Signed{kLarge}, DType::kInt64, Signed{kLarge + 1}, {.atol = 1}),
            Found{});
  EXPECT_EQ(difference_of(DType::kUInt64, Unsigned{~std::uint64_t{0}}, DType::kUInt64,
                          Unsigned{~std::uint64_t{0} - 2}),
            (Found{1, 2, 0}));
  EXPECT_EQ(difference_of(DType::kInt64, Signed{std::numeric_limits<std::int64_t>::min()}, DType::kInt64,
                          Signed{std::numeric_limits<std::int64_t>::max()}),
            (Found{1, 0x1p64, 0}));
}

TEST(CompareElementsTest, ComplexNumbersDifferByTheirDistance) {
  using Floats = std::vector<float>;
  const Floats zeros{0, 0, 0, 0};
  EXPECT_EQ(difference_of(DType::kComplex64, Floats{0, 0, 3, 4}, DType::kComplex64, zeros), (Found{1, 5, 1}));
  EXPECT_EQ(difference_of(DType::kComplex64, Floats{0, 0, 3, 4}, DType::kComplex64, zeros, {.atol = 4.9}),
            (Found{1, 5, 1}));
  EXPECT_EQ(difference_of(DType::kComplex64, Floats{0, 0, 3, 4}, DType::kComplex64, zeros, {.atol = 5}),
            Found{});
  EXPECT_EQ(difference_of(DType::kComplex64, Floats{0, 1}, DType::kComplex64, Floats{3, 1}, {.rtol = 0.95}),
            Found{});
  EXPECT_EQ(difference_of(DType::kComplex64, Floats{0, 1}, DType::kFloat64, std::vector<double>{0}),
            (Found{1, 1, 0}));
  EXPECT_EQ(difference_of(DType::kFloat64, std::vector<double>{7}, DType::kComplex64, Floats{7, 0}), Found{});
  EXPECT_EQ(difference_of(DType::kComplex32, std::vector<std::uint16_t>{0x3c00, 0xc000}, DType::kComplex128,
                          std::vector<double>{1, -2}),
            Found{});
  // As in torch, a complex number is NaN if either part is.
  const auto nan = static_cast<float>(kNan);
  EXPECT_EQ(difference_of(DType::kComplex64, Floats{nan, 1}, DType::kComplex64, Floats{1, nan}, {.atol = 1}),
            Found{});
}

TEST(CompareElementsTest, ValuesOfTwoTypes) {
  using Halves = std::vector<std::uint16_t>;
  EXPECT_EQ(difference_of(DType::kFloat16, Halves{0x3c00, 0x8000, 0x7e00, 0x7c00}, DType::kFloat64,
                          std::vector<double>{1, 0, kNan, kInf}),
            Found{});
  EXPECT_EQ(
      difference_of(DType::kFloat16, Halves{0x3c00, 0x3c01}, DType::kFloat64, std::vector<double>{1, 1}),
      (Found{1, 0x1p-10, 1}));
  EXPECT_EQ(difference_of(DType::kBool, std::vector<std::uint8_t>{0, 1}, DType::kInt16,
                          std::vector<std::int16_t>{0, -1}),
            (Found{1, 2, 1}));
  EXPECT_EQ(difference_of(DType::kFloat8E4M3FN, std::vector<std::uint8_t>{0x38, 0xb8}, DType::kBFloat16,
                          Halves{0x3f80, 0xbf80}),
            Found{});
}

TEST(CompareElementsTest, RejectsDifferentCounts) {
  EXPECT_THAT(error_of(ErrorKind::kFailure,
                       [] {
                         (void)doubles({1, 2}, {1});
                       }),
              HasSubstr("cannot be compared"));
  (void)error_of(ErrorKind::kFailure, [] {
    (void)difference_of(DType::kFloat64, std::vector<char>(9), DType::kInt8, std::vector<char>(1));
  });
}

TEST(CompareElementsTest, BytesThatAreNoNumbersAreEqualOrNot) {
  const std::vector<char> a{1, 2, 3};
  const std::vector<char> b{1, 7, 3};
  EXPECT_EQ(difference_of(DType::kFloat4E2M1FNx2, a, DType::kFloat4E2M1FNx2, a), Found{});
  const Difference found = difference_of(DType::kFloat4E2M1FNx2, a, DType::kFloat4E2M1FNx2, b);
  EXPECT_EQ(found.elements, 1);
  EXPECT_EQ(found.first, 1);
  EXPECT_TRUE(std::isnan(found.largest));
}

// Compares a value of every type with a double of the same value.
TEST(CompareElementsTest, EveryTypeAgainstDouble) {
  for (const DTypeInfo& info : all_dtypes()) {
    if (is_opaque(info.dtype)) continue;
    const bool complex = info.torch_name.starts_with("complex");
    std::string bytes(info.item_bytes, '\0');
    const DType real = complex ? (info.item_bytes == 4   ? DType::kFloat16
                                  : info.item_bytes == 8 ? DType::kFloat32
                                                         : DType::kFloat64)
                               : info.dtype;
    double one = 1;
    if (is_floating(real)) {
      // The one that, as a double, is 1.
      for (int byte = 0; byte < 256 && item_bytes(real) == 1; ++byte) {
        const char found = static_cast<char>(byte);
        double value = 0;
        convert_dtype(real, bytes_of({&found, 1}), DType::kFloat64,
                      std::as_writable_bytes(std::span(&value, 1)));
        if (value == 1) bytes[0] = found;
      }
      if (item_bytes(real) > 1) {
        convert_dtype(DType::kFloat64, std::as_bytes(std::span(&one, 1)), real,
                      std::as_writable_bytes(std::span(bytes)).first(item_bytes(real)));
      }
    } else {
      bytes[0] = 1;
    }
    const std::vector<char> element(bytes.begin(), bytes.end());
    EXPECT_EQ(difference_of(info.dtype, element, DType::kFloat64, std::vector<double>{1}), Found{})
        << info.torch_name;
    EXPECT_EQ(difference_of(DType::kFloat64, std::vector<double>{3}, info.dtype, element), (Found{1, 2, 0}))
        << info.torch_name;
  }
}

// The result does not depend on blocks and pieces: it is that of one element at a time.
RC_GTEST_PROP(ComparePropertyTest, ManyAreComparedAsOne, ()) {
  const DType type_a = *rc::gen::element(DType::kFloat32, DType::kInt8, DType::kComplex64, DType::kBFloat16);
  const DType type_b = *rc::gen::element(type_a, DType::kFloat32);
  const auto count = *rc::gen::element<std::size_t>(1, 1023, 1024, 1025, 5000);
  std::string a = testing::pattern(count * item_bytes(type_a), 1);
  std::string b = testing::pattern(count * item_bytes(type_b), 1);
  for (auto changes = *rc::gen::inRange(0, 5); changes > 0; --changes) {
    char& byte = b[*rc::gen::inRange<std::size_t>(0, b.size())];
    byte = static_cast<char>(byte ^ 0x11);
  }
  const Tolerance tolerance{*rc::gen::element(0.0, 0.1), 0};
  Difference all;
  compare_elements(type_a, bytes_of(a), type_b, bytes_of(b), tolerance, 40, all);
  Difference one_by_one;
  for (std::size_t i = 0; i < count; ++i) {
    Difference one;
    compare_elements(type_a, bytes_of(a).subspan(i * item_bytes(type_a), item_bytes(type_a)), type_b,
                     bytes_of(b).subspan(i * item_bytes(type_b), item_bytes(type_b)), tolerance,
                     40 + static_cast<std::int64_t>(i), one);
    one_by_one.add(one);
  }
  RC_ASSERT(all.elements == one_by_one.elements);
  RC_ASSERT(all.first == one_by_one.first);
  RC_ASSERT(all.largest == one_by_one.largest || (std::isnan(all.largest) && std::isnan(one_by_one.largest)));
}

TEST(DifferenceTest, AddsInAnyOrder) {
  const Difference early{2, 1, 3};
  const Difference late{1, 5, 10};
  for (const auto& [first, second] : {std::pair(early, late), std::pair(late, early)}) {
    Difference sum = first;
    sum.add(second);
    sum.add({});
    EXPECT_EQ(sum, (Found{3, 5, 3}));
  }
  Difference none;
  none.add(early);
  EXPECT_EQ(none, early);
}

class TensorComparerTest : public ::testing::Test {
 protected:
  StoredTensor scatter(const std::string& side, const Truth& truth, std::uint32_t seed) {
    Scatter scatter(dir_ / side, seed);
    StoredTensor stored = scatter.scatter(truth, 4);
    scatter.write();
    return stored;
  }

  TempDir dir_;
  std::uint64_t told_ = 0;
  TensorComparer comparer_{dir_ / "a", dir_ / "b", [this](std::uint64_t bytes) { told_ += bytes; }};
};

TEST_F(TensorComparerTest, ScatteredInTwoWays) {
  const Truth truth = Truth::make({"t"}, DType::kInt32, {300, 1001}, 1);
  Truth other = truth;
  const auto change = [&](std::size_t element) {
    other.data[element * 4] = static_cast<char>(other.data[element * 4] ^ 2);
  };
  const StoredTensor a = scatter("a", truth, 1);
  EXPECT_EQ(comparer_.compare(a, scatter("b", truth, 2), {}), Found{});
  EXPECT_EQ(told_, truth.data.size());
  change(300'299);
  EXPECT_EQ(comparer_.compare(a, scatter("b", other, 3), {}), (Found{1, 2, 300'299}));
  change(65'536);
  change(65'535);
  const StoredTensor b = scatter("b", other, 4);
  EXPECT_EQ(comparer_.compare(a, b, {}), (Found{3, 2, 65'535}));
  EXPECT_EQ(comparer_.compare_range(a, b, 65'536, 300'299, {}), (Found{1, 2, 65'536}));
  EXPECT_EQ(comparer_.compare_range(a, b, 65'537, 300'299, {}), Found{});
  EXPECT_EQ(comparer_.compare_range(a, b, 7, 7, {}), Found{});
  EXPECT_EQ(comparer_.compare(a, b, {.atol = 2}), Found{});
}

TEST_F(TensorComparerTest, AsConverted) {
  const Truth truth = Truth::make({"t"}, DType::kFloat32, {40'000}, 0x3f000000);
  Truth half{{"t"}, DType::kFloat16, {40'000}, std::string(80'000, '\0')};
  convert_dtype(truth.dtype, bytes_of(truth.data), half.dtype, std::as_writable_bytes(std::span(half.data)));
  const StoredTensor a = scatter("a", truth, 1);
  const StoredTensor b = scatter("b", half, 1);
  EXPECT_EQ(comparer_.compare_converted(a, b), Found{});
  EXPECT_GT(comparer_.compare(a, b, {}).elements, 39'000);  // The values differ.
  half.data[79'998] = static_cast<char>(half.data[79'998] ^ 1);
  EXPECT_EQ(comparer_.compare_converted(a, scatter("b", half, 2)).first, 39'999);
  EXPECT_EQ(comparer_.compare_converted(a, scatter("b", truth, 2)), Found{});
}

TEST_F(TensorComparerTest, ShapesMustAgree) {
  const StoredTensor a = scatter("a", Truth::make({"t"}, DType::kInt8, {2, 3}, 1), 1);
  const StoredTensor b = scatter("b", Truth::make({"t"}, DType::kInt8, {3, 2}, 1), 1);
  EXPECT_THAT(error_of(ErrorKind::kFailure, [&] { (void)comparer_.compare(a, b, {}); }),
              HasSubstr("shapes [2, 3] and [3, 2]"));
}

TEST_F(TensorComparerTest, WithoutElements) {
  const StoredTensor a = scatter("a", Truth::make({"t"}, DType::kInt8, {0, 3}, 1), 1);
  EXPECT_EQ(comparer_.compare(a, scatter("b", Truth::make({"t"}, DType::kInt8, {0, 3}, 1), 1), {}), Found{});
  const Truth scalar = Truth::make({"t"}, DType::kInt8, {}, 1);
  EXPECT_EQ(comparer_.compare(scatter("a", scalar, 1), scatter("b", scalar, 2), {}), Found{});
}

class CheckCopiesTest : public ::testing::Test {
 protected:
  CheckCopiesTest() {
    tensor_ = scatter_.scatter(truth_, 3);
    tensor_.copies = {scatter_.place(truth_, Box::whole(truth_.shape)),
                      scatter_.place(truth_, {{3, 5}, {10, 20}})};
  }
  void check() {
    scatter_.write();
    TensorReader reader(dir_.path());
    check_copies(tensor_, reader);
  }

  TempDir dir_;
  Scatter scatter_{dir_.path(), 5};
  Truth truth_ = Truth::make({"t"}, DType::kFloat32, {40, 50}, 0x3f800000);
  StoredTensor tensor_;
};

TEST_F(CheckCopiesTest, TheSame) {
  EXPECT_NO_THROW(check());
  tensor_.copies.clear();
  EXPECT_NO_THROW(check());
}

TEST_F(CheckCopiesTest, ADivergentCopy) {
  Truth other = truth_;
  // Element [4, 6]: 3f8000ce becomes 3f8000cf; [0, 0] is not in the copy.
  other.data[(4 * 50 + 6) * 4] = static_cast<char>(other.data[(4 * 50 + 6) * 4] ^ 1);
  other.data[0] = '?';
  tensor_.copies.push_back(scatter_.place(other, {{3, 5}, {10, 20}}));
  EXPECT_EQ(error_of(ErrorKind::kCorrupt, [&] { check(); }),
            "tensor 't': its copy in '" + tensor_.copies.back().file +
                "' differs in 1 of 200 elements of [3:13, 5:25], at most by 1.19209e-07");
}

TEST_F(CheckCopiesTest, ACopyOfOtherBitsIsDivergentToo) {
  truth_.data.assign(truth_.data.size(), '\0');
  tensor_ = scatter_.scatter(truth_, 0);
  truth_.data[3] = '\x80';
  tensor_.copies = {scatter_.place(truth_, Box::whole(truth_.shape))};
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { check(); }), HasSubstr("differs in 1 of 2000 elements"));
}

TEST_F(CheckCopiesTest, LargerThanABlock) {
  truth_ = Truth::make({"t"}, DType::kFloat32, {400'000}, 1);
  tensor_ = scatter_.scatter(truth_, 2);
  tensor_.copies = {scatter_.place(truth_, {{0}, {400'000}})};
  EXPECT_NO_THROW(check());
  truth_.data[1'599'999] = 'x';
  tensor_.copies = {scatter_.place(truth_, {{0}, {400'000}})};
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { check(); }), HasSubstr("differs in 1 of 400000 elements"));
}

}  // namespace
}  // namespace accel::ckpt
