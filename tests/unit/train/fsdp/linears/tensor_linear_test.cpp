#include "train/fsdp/linears/tensor_linear.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "ranks_as_threads.hpp"
#include "test_port.hpp"

namespace accel::train {
namespace {

using testing::on_ranks;

constexpr int kRanks = 3;

at::Tensor random(at::IntArrayRef shape, std::uint64_t seed) {
  return at::empty(shape, at::kFloat).normal_(0, 1, at::detail::createCPUGenerator(seed));
}

at::Tensor leaf(const at::Tensor& values) { return values.clone().set_requires_grad(true); }

at::Tensor part(const at::Tensor& whole, std::int64_t dim, int rank) {
  return whole.chunk(kRanks, dim)[static_cast<std::size_t>(rank)].contiguous();
}

void expect_close(const at::Tensor& found, const at::Tensor& expected, const char* what) {
  ASSERT_TRUE(found.defined()) << what;
  ASSERT_EQ(found.sizes(), expected.sizes()) << what;
  EXPECT_TRUE(at::allclose(found, expected, 1e-5, 1e-5)) << what;
}

/// A linear [24, 12] of [2, 5, 12] in which the gradient of output element i is i-th of a random tensor, and
/// the same in parts.
struct LinearCase {
  at::Tensor input = random({2, 5, 12}, 1);
  at::Tensor weight = random({24, 12}, 2);
  at::Tensor bias = random({24}, 3);
  at::Tensor gradient = random({2, 5, 24}, 4);
};

TEST(TensorLinearTest, AColwiseLinearIsAPartOfTheWholeOne) {
  on_ranks(kRanks, kRanks, testing::test_port(), [](Group& ranks) {
    for (const TensorStyle style : {TensorStyle::kColwise, TensorStyle::kColwiseGather}) {
      const LinearCase c;
      const int rank = ranks.rank();
      const at::Tensor x = leaf(c.input);
      const at::Tensor w = leaf(c.weight);
      const at::Tensor b = leaf(c.bias);
      const at::Tensor y = at::linear(x, w, b);
      y.backward(c.gradient);

      TensorProducts products(ranks);
      const bool gathers = style == TensorStyle::kColwiseGather;
      const at::Tensor own_x = leaf(c.input);
      const at::Tensor own_w = leaf(part(c.weight, 0, rank));
      const at::Tensor own_b = leaf(part(c.bias, 0, rank));
      const at::Tensor own_y = products.linear(style, own_x, own_w, own_b);
      own_y.backward(gathers ? c.gradient : part(c.gradient, -1, rank));
      expect_close(own_y.detach(), gathers ? y.detach() : part(y.detach(), -1, rank), "output");
      expect_close(own_x.grad(), x.grad(), "input's gradient");
      expect_close(own_w.grad(), part(w.grad(), 0, rank), "weight's gradient");
      expect_close(own_b.grad(), part(b.grad(), 0, rank), "bias's gradient");
    }
  });
}

TEST(TensorLinearTest, ARowwiseLinearSumsItsPartsAndAddsItsBiasOnce) {
  on_ranks(kRanks, kRanks, testing::test_port(), [](Group& ranks) {
    for (const TensorStyle style : {TensorStyle::kRowwise, TensorStyle::kRowwiseSplit}) {
      const LinearCase c;
      const int rank = ranks.rank();
      const at::Tensor x = leaf(c.input);
      const at::Tensor w = leaf(c.weight);
      const at::Tensor b = leaf(c.bias);
      const at::Tensor y = at::linear(x, w, b);
      y.backward(c.gradient);

      TensorProducts products(ranks);
      const bool splits = style == TensorStyle::kRowwiseSplit;
      const at::Tensor own_x = leaf(splits ? c.input : part(c.input, -1, rank));
      const at::Tensor own_w = leaf(part(c.weight, 1, rank));
      const at::Tensor own_b = leaf(c.bias);
      const at::Tensor own_y = products.linear(style, own_x, own_w, own_b);
      own_y.backward(c.gradient);
      expect_close(own_y.detach(), y.detach(), "output");
      expect_close(own_x.grad(), splits ? x.grad() : part(x.grad(), -1, rank), "input's gradient");
      expect_close(own_w.grad(), part(w.grad(), 1, rank), "weight's gradient");
      expect_close(own_b.grad(), b.grad(), "bias's gradient");
    }
  });
}

TEST(TensorLinearTest, LinearsOfOneInputShareTheSumOfItsGradient) {
  on_ranks(kRanks, kRanks, testing::test_port(), [](Group& ranks) {
    const LinearCase c;
    TensorProducts products(ranks);
    const at::Tensor x = leaf(c.input);
    const at::Tensor own_x = leaf(c.input);
    at::Tensor whole = at::zeros({});
    at::Tensor own = at::zeros({});
    for (const double factor : {1.0, -2.0, 0.5}) {
      whole = whole + (at::linear(x, c.weight * factor) * c.gradient).sum();
      const at::Tensor y =
          products.linear(TensorStyle::kColwise, own_x, leaf(part(c.weight * factor, 0, ranks.rank())), {});
      own = own + (y * part(c.gradient, -1, ranks.rank())).sum();
    }
    whole.backward();
    own.backward();
    expect_close(own_x.grad(), x.grad(), "input's gradient");
    // Another input, where the first one was.
    const at::Tensor next = leaf(c.input * 2);
    products.linear(TensorStyle::kColwise, next, leaf(part(c.weight, 0, ranks.rank())), {})
        .backward(part(c.gradient, -1, ranks.rank()));
    expect_close(next.grad(), at::matmul(c.gradient, c.weight), "input's gradient");
  });
}

TEST(TensorLinearTest, AnEmbeddingInPartsIsTheWholeOne) {
  on_ranks(kRanks, kRanks, testing::test_port(), [](Group& ranks) {
    for (const TensorStyle style : {TensorStyle::kEmbeddingRowwise, TensorStyle::kEmbeddingColwise}) {
      for (const std::int64_t padding : {-1, 5}) {
        const std::int64_t dim = style == TensorStyle::kEmbeddingRowwise ? 0 : 1;
        const at::Tensor table = random({9, 6}, 5);
        const at::Tensor indices = at::tensor({0, 5, 8, 3, 5, 2}, at::kLong).view({2, 3});
        const at::Tensor gradient = random({2, 3, 6}, 6);
        const at::Tensor w = leaf(table);
        const at::Tensor y = at::embedding(w, indices, padding);
        y.backward(gradient);
        TensorProducts products(ranks);
        const at::Tensor own = leaf(part(table, dim, ranks.rank()));
        const at::Tensor found = products.embedding(style, own, indices, padding);
        found.backward(gradient);
        expect_close(found.detach(), y.detach(), "result");
        expect_close(own.grad(), part(w.grad(), dim, ranks.rank()), "gradient");
      }
    }
  });
}

TEST(TensorLinearTest, AnIndexOutsideTheVocabularyIsRefusedByEachRank) {
  on_ranks(kRanks, kRanks, testing::test_port(), [](Group& ranks) {
    TensorProducts products(ranks);
    const at::Tensor own = part(random({9, 6}, 5), 0, ranks.rank());
    for (const std::int64_t wrong : {std::int64_t{9}, std::int64_t{-1}}) {
      EXPECT_THROW(
          (void)products.embedding(TensorStyle::kEmbeddingRowwise, own, at::full({2}, wrong, at::kLong), -1),
          std::exception);
    }
  });
}

}  // namespace
}  // namespace accel::train
