// This test is a program of its own, because it changes the products of the whole process.

#include "train/device/matrix_products.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUFunctions.h>
#include <gtest/gtest.h>

#include <string>

namespace at::native {
void mkldnn_matmul(const Tensor& mat1, const Tensor& mat2, const Tensor& result, float beta, float alpha);
}

namespace accel::train {
namespace {

/// Replaces the products once if oneDNN can multiply, as the worker does, and returns whether it can.
bool with_onednn() {
  static const bool can = [] {
    const bool found = onednn_can_multiply();
    if (found) multiply_with_onednn();
    return found;
  }();
  return can;
}

class MatrixProductsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!with_onednn())
      GTEST_SKIP()
          << "needs AVX-512 F, BW, DQ and VL, which ONEDNN_MAX_CPU_ISA allows, and a libtorch with oneDNN";
    at::manual_seed(5);
  }
};

// meson.build runs this program a second time with a limit that oneDNN's product does not accept.
TEST(OneDnnTest, IsNotAskedForAProductThatItRefuses) {
  (void)with_onednn();
  const at::Tensor a = at::ones({256, 256});
  EXPECT_TRUE(at::mm(a, a).equal(at::full({256, 256}, 256.0F)));
}

void expect_near(const at::Tensor& found, const at::Tensor& expected) {
  ASSERT_EQ(found.sizes(), expected.sizes());
  ASSERT_EQ(found.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::allclose(found.to(at::kDouble), expected, 1e-5, 1e-4)) << (found - expected).abs().max();
}

TEST_F(MatrixProductsTest, LargeOnesAreOneDnns) {
  const at::Tensor a = at::randn({256, 512});
  const at::Tensor b = at::randn({512, 384});
  const at::Tensor theirs = at::empty({256, 384});
  at::native::mkldnn_matmul(a, b, theirs, 0, 1);
  EXPECT_TRUE(at::mm(a, b).equal(theirs));
  const at::Tensor small = at::randn({8, 512});
  EXPECT_TRUE(at::mm(small, b.narrow(1, 0, 8)).equal(at::cpu::mm(small, b.narrow(1, 0, 8))));
}

TEST_F(MatrixProductsTest, WhateverTheStrides) {
  const at::Tensor a = at::randn({300, 200}, at::kDouble);
  const at::Tensor b = at::randn({200, 400}, at::kDouble);
  const at::Tensor expected = at::mm(a, b);
  const auto by_columns = [](const at::Tensor& x) { return x.to(at::kFloat).t().contiguous().t(); };
  const auto part_of_larger = [](const at::Tensor& x) {
    const at::Tensor larger = at::full({x.size(0) + 2, x.size(1) + 3}, NAN);
    larger.narrow(0, 1, x.size(0)).narrow(1, 2, x.size(1)).copy_(x);
    return larger.narrow(0, 1, x.size(0)).narrow(1, 2, x.size(1));
  };
  const auto every_second = [](const at::Tensor& x) {
    return x.to(at::kFloat).repeat_interleave(2, 1).slice(1, 0, std::nullopt, 2);
  };
  for (const at::Tensor& left : {a.to(at::kFloat), by_columns(a), part_of_larger(a), every_second(a)}) {
    for (const at::Tensor& right : {b.to(at::kFloat), by_columns(b), part_of_larger(b), every_second(b)})
      expect_near(at::mm(left, right), expected.to(at::kDouble));
  }
  expect_near(at::mm(a.select(0, 0).to(at::kFloat).expand({300, 200}), b.to(at::kFloat)),
              at::mm(a.select(0, 0).expand({300, 200}), b));
}

TEST_F(MatrixProductsTest, LinearForwardAndBackward) {
  for (const bool has_bias : {true, false}) {
    std::vector<at::Tensor> results;
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      at::manual_seed(7);
      const auto leaf = [&](at::IntArrayRef sizes) {
        return at::randn(sizes).to(dtype).requires_grad_(true);
      };
      const at::Tensor x = leaf({4, 64, 128});
      const at::Tensor weight = leaf({192, 128});
      const at::Tensor bias = leaf({192});
      const at::Tensor y = at::linear(x, weight, has_bias ? bias : at::Tensor());
      y.square().mean().backward();
      for (const at::Tensor& value : {y.detach(), x.grad(), weight.grad()}) results.push_back(value);
      if (has_bias) results.push_back(bias.grad());
    }
    const std::size_t half = results.size() / 2;
    for (std::size_t i = 0; i < half; ++i) expect_near(results[i], results[half + i]);
  }
}

TEST_F(MatrixProductsTest, WhatIsNotTheirsIsAsBefore) {
  const at::Tensor a = at::randn({128, 256});
  const at::Tensor b = at::randn({256, 128});
  const at::Tensor c = at::randn({128, 128});
  expect_near(at::addmm(c, a, b, 0.5, 2),
              0.5 * c.to(at::kDouble) + 2 * at::mm(a.to(at::kDouble), b.to(at::kDouble)));
  expect_near(at::addmm(c, a, b), c.to(at::kDouble) + at::mm(a.to(at::kDouble), b.to(at::kDouble)));
  EXPECT_TRUE(at::mm(at::zeros({128, 0}), at::zeros({0, 128})).equal(at::zeros({128, 128})));
  EXPECT_EQ(at::mm(a.to(at::kBFloat16), b.to(at::kBFloat16)).scalar_type(), at::kBFloat16);
  try {
    at::mm(a, a);
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("shapes cannot be multiplied"), std::string::npos)
        << error.what();
  }
  EXPECT_THROW(at::mm(a, b.to(at::kDouble)), c10::Error);
}

TEST(Tf32Test, TheSettingReachesCublasAndCudnn) {
  const at::Context& context = at::globalContext();
  // torch's defaults, which a run without the setting has.
  EXPECT_FALSE(context.allowTF32CuBLAS());
  EXPECT_TRUE(context.allowTF32CuDNN());
  for (const bool allows : {true, false}) {
    allow_tf32(allows);
    EXPECT_EQ(context.allowTF32CuBLAS(), allows);
    EXPECT_EQ(context.allowTF32CuDNN(), allows);
  }
}

}  // namespace
}  // namespace accel::train
