#include "ckpt/write/update_reader.hpp"

#include <gmock/gmock.h>

#include <cstring>
#include <vector>

#include "base/half.hpp"
#include "ckpt/write/write_file.hpp"
#include "fake_checkpoint.hpp"

namespace accel::ckpt {
namespace {

using testing::FakeCheckpoint;
using testing::read_file;
using testing::TempDir;
using testing::Truth;

// Small whole numbers, different everywhere, so that every sum is exact.
std::vector<float> numbers(std::int64_t count, std::int64_t seed) {
  std::vector<float> result;
  for (std::int64_t i = 0; i < count; ++i) result.push_back(static_cast<float>((i * 37 + seed) % 61 - 30));
  return result;
}

template <class T>
Truth truth_of(const char* name, DType dtype, Dims shape, const std::vector<T>& values) {
  return {{name},
          dtype,
          std::move(shape),
          std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T))};
}

// Writes the matrix [rows, columns] with the update, and compares all elements.
void expect_written(std::int64_t rows, std::int64_t columns, bool transposed, unsigned threads) {
  constexpr std::int64_t kRank = 3;
  const std::vector<float> base = numbers(rows * columns, 1);
  const std::int64_t in = transposed ? rows : columns;
  const std::int64_t out = transposed ? columns : rows;
  const std::vector<float> a = numbers(kRank * in, 2);
  std::vector<std::uint16_t> b;
  for (const float value : numbers(out * kRank, 3)) b.push_back(bfloat_of_float(value));
  const TempDir dir;
  FakeCheckpoint source(dir / "source", {truth_of("w", DType::kFloat32, {rows, columns}, base),
                                         truth_of("a", DType::kFloat32, {kRank, in}, a),
                                         truth_of("b", DType::kBFloat16, {out, kRank}, b)});
  const OutputFile plan{"w",
                        static_cast<std::uint64_t>(rows * columns) * 4 + 12,
                        {{8, static_cast<std::uint64_t>(rows * columns) * 4,
                          TensorContent{0, DType::kFloat32, {}, LowRankUpdate{1, 2, 0.5, transposed}}}},
                        {}};
  File file = File::create_new(dir / "w");
  Progress progress("", 0, Progress::Mode::kOff);
  write_file(source, plan, file, {.memory_bytes = threads * kLeastWriteMemory, .threads = threads}, progress);
  file.close();
  const std::string bytes = read_file(dir / "w");
  std::vector<float> written(base.size());
  std::memcpy(written.data(), bytes.data() + 8, written.size() * 4);
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    const std::int64_t o = transposed ? i % columns : i / columns;
    const std::int64_t k = transposed ? i / columns : i % columns;
    float sum = 0;
    for (std::int64_t r = 0; r < kRank; ++r) {
      sum += float_of_bfloat(b[static_cast<std::size_t>(o * kRank + r)]) *
             a[static_cast<std::size_t>(r * in + k)];
    }
    ASSERT_EQ(written[static_cast<std::size_t>(i)], base[static_cast<std::size_t>(i)] + 0.5F * sum) << i;
  }
}

TEST(UpdateReaderTest, SmallMatrices) {
  for (const bool transposed : {false, true}) {
    expect_written(1, 1, transposed, 1);
    expect_written(5, 7, transposed, 2);
  }
}

// Larger than what is updated at once, and than what one thread takes.
TEST(UpdateReaderTest, AMatrixInSeveralParts) {
  expect_written(2999, 3001, false, 2);
  expect_written(2999, 3001, true, 2);
}

}  // namespace
}  // namespace accel::ckpt
