// float8_casts: casts matrices to float8 on the accelerator 0, and compares the factors of a product with
// those of the CPU, bit for bit. Prints `kernels` if the accelerator has kernels for it, which pad, and the
// number of matrices.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <limits>
#include <string>
#include <vector>

#include "train/device/accelerator.hpp"
#include "train/graph/run/float8_cast.hpp"

namespace accel::train {
namespace {

/// NaN has one bit pattern on the CPU for each sign, and one in all on a GPU.
at::Tensor numbers_of(const at::Tensor& tensor) {
  return tensor.to(at::kCPU).to(at::kDouble).nan_to_num(/*nan=*/1e300);
}

void require_equal(const std::string& what, const at::Tensor& found, const at::Tensor& expected) {
  if (found.sizes() == expected.sizes() && numbers_of(found).equal(numbers_of(expected))) return;
  throw std::runtime_error(fmt::format("{}: not equal; shapes {} and {}", what,
                                       at::str(at::tensor(found.sizes())),
                                       at::str(at::tensor(expected.sizes()))));
}

/// What is behind the rows of `matrix` must be 0.
void require_columns(const std::string& what, const Float8Matrix& found, const Float8Matrix& matrix) {
  const std::int64_t rows = matrix.data.size(0);
  require_equal(what, found.data.narrow(0, 0, rows), matrix.data);
  const at::Tensor padding = found.data.narrow(0, rows, found.data.size(0) - rows);
  require_equal(what + ", padding", padding, at::zeros(padding.sizes()));
}

/// Returns whether the accelerator padded the rows.
bool run(const std::string& what, const at::Tensor& value, at::ScalarType dtype, at::Device device) {
  const at::Tensor there = value.to(device);
  const Float8Factors cpu = float8_factors(value, dtype, true, true);
  const Float8Factors both = float8_factors(there, dtype, true, true);
  const Float8Factors left = float8_factors(there, dtype, true, false);
  const Float8Factors right = float8_factors(there, dtype, false, true);
  for (const Float8Matrix& rows : {both.rows, left.rows})
    require_equal(what + ", rows", rows.data, cpu.rows.data);
  for (const Float8Matrix& columns : {both.columns, right.columns})
    require_columns(what + ", columns", columns, cpu.rows);
  require_columns(what + ", float8_columns()", float8_columns(both.rows), cpu.rows);
  for (const Float8Matrix& matrix : {both.rows, both.columns, left.rows, right.columns}) {
    require_equal(what + ", scale", matrix.scale, cpu.rows.scale);
  }
  // Values that begin anywhere, and a number of them that four does not divide.
  for (const std::int64_t begin : {0, 1, 6}) {
    const at::Tensor flat = there.reshape({-1}).narrow(0, begin, value.numel() - begin - 1);
    const at::Tensor memory = at::zeros({flat.numel() + 3}, flat.options().dtype(dtype));
    float8_cast_to(memory.narrow(0, begin % 4, flat.numel()), flat, both.rows.scale);
    require_equal(what + ", float8_cast_to()", memory.narrow(0, begin % 4, flat.numel()),
                  cpu.rows.data.reshape({-1}).narrow(0, begin, flat.numel()));
  }
  return both.columns.data.size(0) != value.size(0);
}

int run_all(at::Device device) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  at::manual_seed(0);
  bool has_kernels = false;
  int matrices = 0;
  for (const at::ScalarType dtype : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    for (const at::ScalarType of : {at::kFloat, at::kHalf, at::kBFloat16}) {
      for (const auto& [rows, columns] : std::vector<std::pair<std::int64_t, std::int64_t>>{
               {1, 16}, {3, 48}, {16, 16}, {64, 128}, {65, 144}, {130, 400}, {257, 1040}, {1000, 64}}) {
        const at::Tensor exponents = at::randint(-9, 3, {rows, columns}).to(at::kFloat);
        const at::Tensor value = at::randn({rows, columns}) * at::exp2(exponents);
        std::vector<std::string> names = {""};
        std::vector<at::Tensor> values = {value};
        if (columns == 48) {
          names = {"", " of 0", " of tiny numbers", " with infinity", " with NaN"};
          values = {value, at::zeros_like(value), value * 1e-14, value.clone(), value.clone()};
          values[3].select(0, 1).select(0, 5).fill_(-kInfinity);
          values[4].select(0, 2).select(0, 47).fill_(kNan);
        }
        for (std::size_t i = 0; i < values.size(); ++i) {
          const std::string what = fmt::format("{} from {}, {} x {}{}", at::toString(dtype), at::toString(of),
                                               rows, columns, names[i]);
          has_kernels = run(what, values[i].to(of), dtype, device) || has_kernels;
          ++matrices;
        }
      }
    }
  }
  fmt::print("{}{} matrices\n", has_kernels ? "kernels, " : "", matrices);
  return 0;
}

}  // namespace
}  // namespace accel::train

int main() {
  try {
    return accel::train::run_all(accel::train::load_accelerator(0));
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
