#include "ckpt/diff/diff.hpp"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <new>
#include <tuple>

#include "fake_checkpoint.hpp"

namespace accel::ckpt {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using testing::FakeCheckpoint;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TempDir;
using testing::Truth;

/// How many elements differ, at most by how much, and the first.
using Counts = std::tuple<std::int64_t, double, std::int64_t>;

Counts counts_of(const Difference& values) { return {values.elements, values.largest, values.first}; }

DiffResult diff(FakeCheckpoint& a, FakeCheckpoint& b, const DiffOptions& options = {},
                const DiffSelection& selection = {}) {
  Progress progress("", 0, Progress::Mode::kOff);
  return diff_checkpoints(a, b, plan_diff(a, b, selection), options, progress);
}

void flip(Truth& truth, std::size_t at, int bits) {
  truth.data[at] = static_cast<char>(truth.data[at] ^ bits);
}

class DiffTest : public ::testing::Test {
 protected:
  DiffResult diff_truths(const std::vector<Truth>& a, const std::vector<Truth>& b,
                         const DiffOptions& options = {}) {
    FakeCheckpoint side_a(dir_ / "a", a, 1, 3);
    FakeCheckpoint side_b(dir_ / "b", b, 2, 1);
    return diff(side_a, side_b, options);
  }

  TempDir dir_;
};

TEST_F(DiffTest, TheSame) {
  const std::vector<Truth> truths{Truth::make({"x"}, DType::kFloat32, {3, 4}, 1),
                                  Truth::make({"none"}, DType::kInt8, {0, 4}, 1),
                                  Truth::make({"one"}, DType::kInt64, {}, 1)};
  const DiffResult result = diff_truths(truths, truths);
  EXPECT_TRUE(result.same());
  EXPECT_EQ(result.compared_tensors, 3U);
  EXPECT_EQ(result.paired_tensors, 3U);
  EXPECT_EQ(result.compared_bytes, 56U);
  EXPECT_TRUE(diff_truths({}, {}).same());
}

TEST_F(DiffTest, OnlyOnOneSide) {
  const DiffResult result = diff_truths({Truth::make({"x"}, DType::kFloat32, {3, 4}, 1)},
                                        {Truth::make({"y"}, DType::kInt8, {2}, 1)});
  ASSERT_EQ(result.only_a.size(), 1U);
  ASSERT_EQ(result.only_b.size(), 1U);
  EXPECT_EQ(result.only_a[0].name, "x");
  EXPECT_EQ(result.only_a[0].shape, (Dims{3, 4}));
  EXPECT_EQ(result.only_b[0].dtype, DType::kInt8);
  EXPECT_FALSE(result.same());
  EXPECT_EQ(result.findings(), 2U);
}

TEST_F(DiffTest, AnotherShapeIsNotCompared) {
  const DiffResult result = diff_truths(
      {Truth::make({"x"}, DType::kFloat32, {3, 4}, 1), Truth::make({"y"}, DType::kFloat32, {2}, 1)},
      {Truth::make({"x"}, DType::kFloat32, {4, 3}, 1), Truth::make({"y"}, DType::kFloat32, {2}, 1)});
  ASSERT_EQ(result.tensors.size(), 1U);
  EXPECT_EQ(result.tensors[0].name, "x");
  EXPECT_TRUE(result.tensors[0].other_shape());
  EXPECT_EQ(result.compared_tensors, 1U);
  EXPECT_EQ(result.paired_tensors, 2U);
  EXPECT_EQ(result.compared_bytes, 8U);
}

TEST_F(DiffTest, ValuesAndWhereTheyAre) {
  const Truth before = Truth::make({"x"}, DType::kInt32, {3, 4, 5}, 100);
  Truth after = before;
  flip(after, 4 * (2 * 20 + 1 * 5 + 3), 4);
  flip(after, 4 * (2 * 20 + 3 * 5), 1);
  const DiffResult result = diff_truths({before}, {after});
  ASSERT_EQ(result.tensors.size(), 1U);
  EXPECT_EQ(counts_of(result.tensors[0].values), Counts(2, 4, 48));
  EXPECT_EQ(result.tensors[0].first_position(), (Dims{2, 1, 3}));
  EXPECT_TRUE(diff_truths({before}, {after}, {.tolerance = {.atol = 4}}).same());
  EXPECT_EQ(diff_truths({before}, {after}, {.tolerance = {.atol = 3}}).tensors[0].values.elements, 1);
}

TEST_F(DiffTest, AnotherTypeIsComparedByValue) {
  const Truth floats{{"x"}, DType::kFloat32, {2}, std::string("\0\0\x80\x3f\0\0\0\x40", 8)};
  const Truth halves{{"x"}, DType::kFloat16, {2}, std::string("\0\x3c\0\x40", 4)};
  DiffResult result = diff_truths({floats}, {halves});
  ASSERT_EQ(result.tensors.size(), 1U);
  EXPECT_TRUE(result.tensors[0].other_dtype());
  EXPECT_EQ(counts_of(result.tensors[0].values), Counts(0, 0, -1));
  EXPECT_TRUE(diff_truths({floats}, {halves}, {.ignore_dtype = true}).same());
  Truth others = halves;
  others.data[3] = '\x42';
  result = diff_truths({floats}, {others}, {.ignore_dtype = true});
  ASSERT_EQ(result.tensors.size(), 1U);
  EXPECT_EQ(counts_of(result.tensors[0].values), Counts(1, 1, 1));
}

TEST_F(DiffTest, Objects) {
  FakeCheckpoint a(dir_ / "a", {});
  FakeCheckpoint b(dir_ / "b", {});
  a.add_object({"same"}, 3);
  b.add_object({"same"}, 3);
  a.add_object({"lr"}, 0.5);
  b.add_object({"lr"}, 0.25);
  a.add_object({"gone"}, "x");
  b.add_object({"new"}, pickle::Value());
  const DiffResult result = diff(a, b);
  ASSERT_EQ(result.objects.size(), 3U);
  EXPECT_EQ(result.objects[0].name, "lr");
  EXPECT_EQ(result.objects[0].a, "0.5");
  EXPECT_EQ(result.objects[0].b, "0.25");
  EXPECT_EQ(result.objects[1].name, "gone");
  EXPECT_EQ(result.objects[1].b, std::nullopt);
  EXPECT_EQ(result.objects[2].name, "new");
  EXPECT_EQ(result.objects[2].a, std::nullopt);
  EXPECT_EQ(result.compared_objects, 2U);
  EXPECT_FALSE(result.same());
}

TEST_F(DiffTest, WhatIsNotUnderTheRootIsSaid) {
  FakeCheckpoint a(dir_ / "a", {Truth::make({"model", "w"}, DType::kInt8, {2}, 1),
                                Truth::make({"ema"}, DType::kInt8, {2}, 1)});
  FakeCheckpoint b(dir_ / "b", {Truth::make({"w"}, DType::kInt8, {2}, 1)});
  const DiffResult result = diff(a, b);
  EXPECT_TRUE(result.same());
  EXPECT_THAT(result.left_out_a, ElementsAre("ema"));
  EXPECT_THAT(result.left_out_b, IsEmpty());
}

// Larger than what a thread takes at a time; the result does not depend on who finds what.
TEST_F(DiffTest, LargeTensorsAreShared) {
  Truth large = Truth::make({"large"}, DType::kInt16, {3, 8'000'000}, 1);
  Truth other = large;
  for (const std::size_t element :
       {std::size_t{5'000'000}, std::size_t{20'000'000}, std::size_t{23'999'999}}) {
    flip(other, 2 * element, 8);
  }
  const auto dense = [&](const char* side, const Truth& truth) {
    StoredTensor stored{"large", DType::kInt16, truth.shape, {}};
    std::filesystem::create_directories(dir_ / side);
    testing::write_file(dir_ / side / "data", truth.data);
    stored.extents = {{"data", 0, Box::whole(truth.shape), row_major_strides(truth.shape)}};
    return stored;
  };
  for (const unsigned threads : {1U, 2U, 5U}) {
    FakeCheckpoint a(dir_ / "a", {large}, {dense("a", large)});
    FakeCheckpoint b(dir_ / "b", {other}, {dense("b", other)});
    const DiffResult result = diff(a, b, {.threads = threads});
    ASSERT_EQ(result.tensors.size(), 1U);
    EXPECT_EQ(counts_of(result.tensors[0].values), Counts(3, 8, 5'000'000));
  }
}

RC_GTEST_PROP(DiffPropertyTest, FindsJustTheChanges, ()) {
  const TempDir dir;
  std::vector<Truth> truths;
  const auto count = *rc::gen::inRange(0, 12);
  for (int i = 0; i < count; ++i) {
    const Dims shape = *rc::gen::resize(3, rc::gen::container<Dims>(rc::gen::inRange<std::int64_t>(0, 6)));
    truths.push_back(
        Truth::make({"t" + std::to_string(i)}, DType::kInt16, shape, static_cast<std::uint32_t>(i)));
  }
  std::vector<Truth> others = truths;
  std::map<std::string, Difference> expected;
  for (Truth& other : others) {
    const auto numel = static_cast<std::size_t>(checked_numel(other.shape));
    for (std::size_t e = 0; e < numel; ++e) {
      if (*rc::gen::inRange(0, 8) != 0) continue;
      flip(other, 2 * e, 1);
      expected[fqn_of(other.path)].add({1, 1, static_cast<std::int64_t>(e), 0, /*squares=*/1});
    }
  }
  FakeCheckpoint a(dir / "a", truths, *rc::gen::arbitrary<std::uint32_t>(), 3);
  std::reverse(others.begin(), others.end());
  FakeCheckpoint b(dir / "b", others, *rc::gen::arbitrary<std::uint32_t>(), 3);
  const DiffResult result = diff(a, b, {.threads = *rc::gen::inRange(1U, 5U)});
  std::map<std::string, Difference> found;
  for (const TensorDifference& tensor : result.tensors) {
    found[tensor.name] = tensor.values;
    found[tensor.name].largest_relative = 0;  // It depends on the values.
  }
  RC_ASSERT(found == expected);
  RC_ASSERT(result.findings() == expected.size());
}

class DiffFailureTest : public DiffTest {
 protected:
  DiffFailureTest() {
    for (int i = 0; i < 40; ++i)
      truths_.push_back(Truth::make({"t" + std::to_string(i)}, DType::kInt32, {100, 10}, 1));
  }
  std::vector<Truth> truths_;
};

TEST_F(DiffFailureTest, AFailingReadComesOut) {
  for (const unsigned threads : {1U, 4U}) {
    FakeCheckpoint a(dir_ / "a", truths_, 1, 3);
    FakeCheckpoint b(dir_ / "b", truths_, 2, 3);
    b.stored(20).extents.pop_back();
    EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)diff(a, b, {.threads = threads}); }),
                HasSubstr("tensor 't20'"));
  }
}

TEST_F(DiffFailureTest, AFailureToLocateComesOut) {
  for (const unsigned threads : {1U, 4U}) {
    FakeCheckpoint a(dir_ / "a", truths_, 1, 3);
    FakeCheckpoint b(dir_ / "b", truths_, 2, 3);
    a.before_locate = [](std::size_t tensor) {
      if (tensor == 30) throw Error(ErrorKind::kMissing, "not to be found");
    };
    EXPECT_EQ(error_of(ErrorKind::kMissing, [&] { (void)diff(a, b, {.threads = threads}); }),
              "not to be found");
    b.before_locate = [](std::size_t) { throw std::bad_alloc(); };
    EXPECT_THROW((void)diff(a, b, {.threads = threads}), std::bad_alloc);
  }
}

}  // namespace
}  // namespace accel::ckpt
