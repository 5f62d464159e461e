#include "train/fsdp/buffers/comm_hook.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "plan/memory/step_memory.hpp"
#include "ranks_as_threads.hpp"
#include "test_port.hpp"
#include "train/fsdp/buffers/reduce_queue.hpp"

namespace accel::train {
namespace {

using config::CommHookType;

FlatLayout layout() { return make_flat_layout({{{"weight"}, {64}}}, 4, Mesh{2, 1}); }

at::Tensor gradient(int rank) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(rank));
  return at::randn({layout().numel()}, generator, at::kFloat);
}

/// The mean that the hook takes of both ranks' gradients.
at::Tensor reduced(const config::DdpConfig& config,
                   const std::function<at::Tensor(int)>& gradient_of = gradient) {
  at::Tensor result;
  testing::on_ranks(2, 2, testing::test_port(), [&](Group& group) {
    const auto hook = CommHook::make(config, layout(), std::make_shared<NumpyRandom>(0));
    at::Tensor own;
    // Twice, because the hook's state must not matter.
    for (int step = 0; step < 2; ++step) {
      own = gradient_of(group.rank());
      hook->start(group, own);
      hook->finish();
      EXPECT_EQ(own.scalar_type(), at::kFloat);
    }
    if (group.rank() == 0) result = own;
  });
  return result;
}

/// The sum of two numbers is rounded once, in any order.
at::Tensor mean_in(at::ScalarType inner, at::ScalarType outer) {
  at::Tensor sum;
  for (const int rank : {0, 1}) {
    const at::Tensor part = gradient(rank).to(outer).to(inner) / 2;
    sum = sum.defined() ? sum + part : part;
  }
  return sum.to(outer).to(at::kFloat);
}

TEST(CommHookTest, IsNotThereUnlessAskedFor) { EXPECT_EQ(CommHook::make({}, layout(), nullptr), nullptr); }

TEST(CommHookTest, GradientsTravelInTheHooksDtype) {
  const at::Tensor full = mean_in(at::kFloat, at::kFloat);
  const at::Tensor half = reduced({CommHookType::kFp16});
  const at::Tensor brain = reduced({CommHookType::kBf16});
  EXPECT_TRUE(half.equal(mean_in(at::kHalf, at::kFloat)));
  EXPECT_TRUE(brain.equal(mean_in(at::kBFloat16, at::kFloat)));
  for (const at::Tensor& rounded : {half, brain}) {
    EXPECT_FALSE(rounded.equal(full));
    EXPECT_TRUE(at::allclose(rounded, full, 1e-2, 1e-2));
  }
  EXPECT_FALSE(half.equal(brain));
}

TEST(CommHookTest, AWrapperRoundsBefore) {
  EXPECT_TRUE(reduced({CommHookType::kBf16, CommHookType::kFp16}).equal(mean_in(at::kBFloat16, at::kHalf)));
  EXPECT_TRUE(reduced({CommHookType::kFp16, CommHookType::kBf16}).equal(mean_in(at::kHalf, at::kBFloat16)));
  EXPECT_TRUE(reduced({CommHookType::kFp16, CommHookType::kFp16}).equal(reduced({CommHookType::kFp16})));
  // Before PowerSGD begins it takes a plain mean in the wrapper's dtype.
  EXPECT_TRUE(reduced({CommHookType::kPowerSgd, CommHookType::kBf16}).equal(reduced({CommHookType::kBf16})));
}

TEST(CommHookTest, DividesBeforeTheSum) {
  const auto of = [](float value) { return [=](int) { return at::full({layout().numel()}, value); }; };
  EXPECT_TRUE(reduced({CommHookType::kFp16}, of(40000)).eq(40000).all().item<bool>());
  EXPECT_TRUE(reduced({CommHookType::kFp16}, of(70000)).isinf().all().item<bool>());
}

/// Buffer `index` of several, with this rank's gradient.
std::unique_ptr<FlatBuffer> buffer_of(int index, int rank, const config::DdpConfig& config,
                                      const std::shared_ptr<NumpyRandom>& seeds) {
  const std::int64_t rows = 16 + 8 * index;
  auto buffer = std::make_unique<FlatBuffer>(
      make_flat_layout({{{"weight"}, {rows, 20}}}, 4, Mesh{2, 1}), BufferDtypes::all(at::kFloat),
      /*trainable=*/true, BufferPool::make(at::kCPU, /*poison=*/true), StorageDevice::beside(at::kCPU));
  buffer->set_comm_hook(CommHook::make(config, buffer->layout(), seeds));
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(10 * index + rank));
  buffer->add_gradient(0, at::randn({rows, 20}, generator, at::kFloat));
  return buffer;
}

TEST(CommHookTest, BuffersThatAreUnderWayTogetherGetWhatEachGetsAlone) {
  constexpr int kBuffers = 5;
  static_assert(kBuffers > kMaxHooked + 1);
  config::DdpConfig low_rank{CommHookType::kPowerSgd, CommHookType::kFp16};
  low_rank.power_sgd.start_iter = 0;
  for (const config::DdpConfig& config : {config::DdpConfig{CommHookType::kBf16}, low_rank}) {
    testing::on_ranks(2, 2, testing::test_port(), [&](Group& group) {
      const MeshGroups groups = MeshGroups::split(group, Mesh{2, 1}, 0);
      const auto reduce = [&](bool together) {
        const auto seeds = std::make_shared<NumpyRandom>(0);
        ReduceQueue queue(groups);
        std::vector<std::unique_ptr<FlatBuffer>> buffers;
        for (int i = 0; i < kBuffers; ++i) {
          buffers.push_back(buffer_of(i, group.rank(), config, seeds));
          queue.start(*buffers.back());
          if (!together) queue.finish();
        }
        std::vector<at::Tensor> gradients;
        // All but the last are finished, so that no more buffers have copies at once.
        for (std::size_t i = 0; i < kBuffers - kMaxHooked; ++i)
          gradients.push_back(buffers[i]->gradient().clone());
        queue.finish();
        for (std::size_t i = kBuffers - kMaxHooked; i < kBuffers; ++i)
          gradients.push_back(buffers[i]->gradient().clone());
        return gradients;
      };
      const std::vector<at::Tensor> together = reduce(true);
      const std::vector<at::Tensor> alone = reduce(false);
      for (std::size_t i = 0; i < kBuffers; ++i) EXPECT_TRUE(together[i].equal(alone[i])) << i;
    });
  }
}

}  // namespace
}  // namespace accel::train
