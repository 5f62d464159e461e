#include "train/fsdp/buffers/power_sgd.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <limits>
#include <tuple>
#include <vector>

#include "ranks_as_threads.hpp"
#include "test_port.hpp"

namespace accel::train {
namespace {

/// A matrix [12, 20], a vector, and a parameter [2, 6, 10] that is a matrix [2, 60].
FlatLayout layout() {
  return make_flat_layout({{{"first"}, {12, 20}}, {{"bias"}, {10}}, {{"second"}, {2, 6, 10}}}, 4, Mesh{2, 1});
}

at::Tensor part(const at::Tensor& flat, std::size_t index) {
  const FlatParameter parameter = layout().parameters[index];
  return flat.narrow(0, parameter.offset, parameter.numel).view(parameter.spec.shape);
}

/// The gradient of one rank in one step; zeros in the gaps.
at::Tensor gradient(int rank, int step) {
  at::Tensor flat = at::zeros({layout().numel()});
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(100 * step + rank));
  for (std::size_t i = 0; i < 3; ++i)
    part(flat, i).copy_(at::randn(layout().parameters[i].spec.shape, generator, at::kFloat));
  return flat;
}

at::Tensor mean_gradient(int step) { return (gradient(0, step) + gradient(1, step)) / 2; }

config::PowerSgdConfig plain(std::int64_t rank = 1) {
  config::PowerSgdConfig config;
  config.matrix_approximation_rank = rank;
  config.start_iter = 0;
  config.min_compression_rate = 0.95;  // Both matrices are factored even with rank 2, the vector is not.
  config.use_error_feedback = false;
  config.warm_start = false;
  return config;
}

struct Rank {
  Group& group;
  PowerSgd sgd;
  std::shared_ptr<NumpyRandom> seeds;

  Rank(Group& over, const config::PowerSgdConfig& config, const std::shared_ptr<NumpyRandom>& random)
      : group(over), sgd(layout(), config, random), seeds(random) {}
  at::Tensor reduce(at::Tensor flat) {
    sgd.start(group, flat);
    sgd.finish();
    return flat;
  }
};

void on_two_ranks(const config::PowerSgdConfig& config, const std::function<void(Rank&)>& body) {
  testing::on_ranks(2, 2, testing::test_port(), [&](Group& group) {
    Rank rank(group, config, std::make_shared<NumpyRandom>(config.random_seed));
    body(rank);
  });
}

at::Tensor orthonormal(const at::Tensor& matrix) { return std::get<0>(at::linalg_qr(matrix)); }

/// One step of the power iteration, in double.
at::Tensor low_rank(const at::Tensor& mean, const at::Tensor& q) {
  const at::Tensor matrix = mean.reshape({mean.size(0), -1}).to(at::kDouble);
  const at::Tensor p = orthonormal(at::matmul(matrix, orthonormal(q.to(at::kDouble))));
  return at::matmul(p, at::matmul(p.t(), matrix)).view(mean.sizes());
}

void expect_close(const at::Tensor& ours, const at::Tensor& expected, double tolerance = 1e-5) {
  EXPECT_LT((ours.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>(), tolerance);
}

TEST(PowerSgdTest, IsOneStepOfThePowerIterationOfTheMean) {
  for (const std::int64_t rank : {1, 2, 3}) {
    SCOPED_TRACE(rank);
    on_two_ranks(plain(rank), [&](Rank& self) {
      const at::Tensor reduced = self.reduce(gradient(self.group.rank(), 0));
      // RandomState(0) draws this seed first. Both matrices draw from it, the second at most of rank 2.
      auto generator = at::make_generator<at::CPUGeneratorImpl>(209652396);
      const at::Tensor mean = mean_gradient(0);
      expect_close(part(reduced, 0), low_rank(part(mean, 0), at::randn({20, rank}, generator, at::kFloat)));
      const std::int64_t second = std::min<std::int64_t>(rank, 2);
      expect_close(part(reduced, 2), low_rank(part(mean, 2), at::randn({60, second}, generator, at::kFloat)));
      EXPECT_GT((part(reduced, 0) - part(mean, 0)).abs().max().item<double>(), 0.1);
    });
  }
}

TEST(PowerSgdTest, WhatIsNotFactoredIsTheMean) {
  config::PowerSgdConfig config = plain();
  config.min_compression_rate = 2;  // [2, 60] saves too little.
  on_two_ranks(config, [&](Rank& self) {
    const at::Tensor reduced = self.reduce(gradient(self.group.rank(), 0));
    expect_close(part(reduced, 1), part(mean_gradient(0), 1), 1e-6);
    expect_close(part(reduced, 2), part(mean_gradient(0), 2), 1e-6);
  });
}

TEST(PowerSgdTest, TheFirstStepsAreTheMean) {
  config::PowerSgdConfig config = plain();
  config.start_iter = 2;
  on_two_ranks(config, [&](Rank& self) {
    for (const int step : {0, 1, 2}) {
      const at::Tensor reduced = self.reduce(gradient(self.group.rank(), step));
      const double lost = (reduced - mean_gradient(step)).abs().max().item<double>();
      EXPECT_EQ(lost < 1e-6, step < 2) << step;
    }
  });
}

// Further gradients are zero, so that only the error is sent: in the end all of it.
TEST(PowerSgdTest, WhatAStepLosesIsSentLater) {
  config::PowerSgdConfig config = plain();
  config.use_error_feedback = true;
  config.warm_start = true;
  config.orthogonalization_epsilon = 1e-8;
  on_two_ranks(config, [&](Rank& self) {
    at::Tensor sent = self.reduce(gradient(self.group.rank(), 0));
    double lost = (sent - mean_gradient(0)).abs().max().item<double>();
    EXPECT_GT(lost, 0.5);
    for (int step = 1; step < 40; ++step) sent += self.reduce(at::zeros({layout().numel()}));
    lost = (sent - mean_gradient(0)).abs().max().item<double>();
    EXPECT_LT(lost, 0.05);
  });
}

TEST(PowerSgdTest, DrawsOnceWithAWarmStartAndElseInEveryStep) {
  for (const bool warm : {true, false}) {
    config::PowerSgdConfig config = plain();
    config.warm_start = warm;
    on_two_ranks(config, [&](Rank& self) {
      for (const int step : {0, 1, 2}) (void)self.reduce(gradient(self.group.rank(), step));
      // The second and the fourth number that RandomState(0) draws.
      EXPECT_EQ(self.seeds->randint(1'000'000'000), warm ? 398764591U : 404868288U);
    });
  }
}

// With a warm start, the factors of the same gradient come close to its largest singular value.
TEST(PowerSgdTest, AWarmStartComesCloserInEveryStep) {
  config::PowerSgdConfig config = plain();
  config.warm_start = true;
  on_two_ranks(config, [&](Rank& self) {
    const at::Tensor mean = part(mean_gradient(0), 0);
    const at::Tensor singular = at::linalg_svdvals(mean);
    const double least = (singular.square().sum() - singular[0].square()).sqrt().item<double>();
    at::Tensor reduced;
    for (int step = 0; step < 30; ++step) reduced = self.reduce(gradient(self.group.rank(), 0));
    EXPECT_NEAR((part(reduced, 0) - mean).norm().item<double>(), least, 1e-2);
  });
}

TEST(PowerSgdTest, ForgetsWhatIsNotFinite) {
  config::PowerSgdConfig config = plain();
  config.use_error_feedback = true;
  config.warm_start = true;
  on_two_ranks(config, [&](Rank& self) {
    at::Tensor overflowed = gradient(self.group.rank(), 0);
    if (self.group.rank() == 0) overflowed[3] = std::numeric_limits<float>::infinity();
    EXPECT_FALSE(self.reduce(overflowed).isfinite().all().item<bool>());
    EXPECT_FALSE(self.reduce(gradient(self.group.rank(), 1)).isfinite().all().item<bool>());
    self.sgd.reset();
    EXPECT_TRUE(self.reduce(gradient(self.group.rank(), 2)).isfinite().all().item<bool>());
  });
}

TEST(OrthogonalizeTest, ColumnsAreOrthonormal) {
  at::manual_seed(3);
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    const double tolerance = dtype == at::kFloat ? 1e-5 : 2e-2;
    for (const std::int64_t rank : {1, 2, 4}) {
      const at::Tensor matrices = at::randn({1, 30, rank}).to(dtype);
      orthogonalize(matrices, 0);
      const at::Tensor matrix = matrices[0].to(at::kDouble);
      expect_close(at::matmul(matrix.t(), matrix), at::eye(rank), tolerance);
    }
  }
}

TEST(OrthogonalizeTest, EpsilonSparesColumnsOfZeros) {
  at::Tensor zeros = at::zeros({1, 5, 1});
  orthogonalize(zeros, 1e-8);
  EXPECT_TRUE(zeros.eq(0).all().item<bool>());
  orthogonalize(zeros, 0);
  EXPECT_TRUE(zeros.isnan().all().item<bool>());
  at::Tensor column = at::full({1, 4, 1}, 1.0F);
  orthogonalize(column, 2);  // Its norm is 2.
  expect_close(column, at::full({1, 4, 1}, 0.25F));
}

}  // namespace
}  // namespace accel::train
