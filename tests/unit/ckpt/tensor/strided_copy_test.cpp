#include "ckpt/tensor/strided_copy.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::pattern;
using testing::TempDir;
using testing::write_file;

TEST(StridedCopyTest, DenseBlocksAreOneRun) {
  const StridedCopy copy = plan_strided_copy({3, 4, 5}, {20, 5, 1}, {20, 5, 1}, 8, 16, 4);
  EXPECT_EQ(copy.run_bytes, 240U);
  EXPECT_TRUE(copy.loops.empty());
}

TEST(StridedCopyTest, RowsOfAColumnShardAreOneLoop) {
  const StridedCopy copy = plan_strided_copy({6, 1, 5}, {5, 5, 1}, {20, 20, 1}, 0, 0, 2);
  EXPECT_EQ(copy.run_bytes, 10U);
  ASSERT_EQ(copy.loops.size(), 1U);
  EXPECT_EQ(copy.loops[0].count, 6);
  EXPECT_EQ(copy.loops[0].target_step, 40);
  EXPECT_EQ(copy.bytes(), 60U);
  EXPECT_EQ(copy.source_span(), 60U);
}

TEST(StridedCopyTest, ScalarsAreOneItem) { EXPECT_EQ(plan_strided_copy({}, {}, {}, 0, 0, 8).bytes(), 8U); }

// Strides of a layout with its dimensions in any order and with gaps.
Dims any_strides(const Dims& sizes) {
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[*rc::gen::inRange<std::size_t>(0, i)]);
  Dims strides(sizes.size());
  std::int64_t step = *rc::gen::inRange<std::int64_t>(1, 3);
  for (const std::size_t d : order) {
    strides[d] = step;
    step = step * sizes[d] + *rc::gen::inRange<std::int64_t>(0, 3);
  }
  return strides;
}

RC_GTEST_PROP(StridedCopyPropertyTest, EveryElementGetsWhereItBelongs, ()) {
  const Dims sizes = *rc::gen::resize(4, rc::gen::container<Dims>(rc::gen::inRange<std::int64_t>(1, 7)));
  const Dims from = any_strides(sizes);
  const Dims to = any_strides(sizes);
  const auto span_of = [&](const Dims& strides) {
    std::int64_t last = 0;
    for (std::size_t d = 0; d < sizes.size(); ++d) last += (sizes[d] - 1) * strides[d];
    return static_cast<std::size_t>(last + 1) * 4;
  };
  const TempDir dir;
  const std::string data = pattern(12 + span_of(from), 0);
  write_file(dir / "f", data);
  const File file = File::open_read(dir / "f");
  std::vector<std::byte> out(8 + span_of(to), std::byte{0xee});
  std::vector<std::byte> scratch(*rc::gen::element(4, 64, 100'000));
  FileSource from_file(file);
  execute_strided_copy(plan_strided_copy(sizes, from, to, 12, 8, 4), from_file, out, scratch);

  std::string expected(out.size(), '\xee');
  Dims at(sizes.size(), 0);
  for (std::int64_t i = 0; i < checked_numel(sizes); ++i) {
    std::int64_t source = 0;
    std::int64_t target = 0;
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      source += at[d] * from[d];
      target += at[d] * to[d];
    }
    expected.replace(8 + static_cast<std::size_t>(target) * 4, 4, data,
                     12 + static_cast<std::size_t>(source) * 4, 4);
    for (std::size_t d = sizes.size(); d-- > 0;) {
      if (++at[d] < sizes[d]) break;
      at[d] = 0;
    }
  }
  RC_ASSERT(std::string(reinterpret_cast<const char*>(out.data()), out.size()) == expected);
}

}  // namespace
}  // namespace accel::ckpt
