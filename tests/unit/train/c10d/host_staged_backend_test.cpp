// These tests use CPU tensors, which the backend copies like those of a GPU.

#include "train/c10d/host_staged_backend.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "train/c10d/shm_backend.hpp"

namespace accel::train {
namespace {

/// Runs `body` as `size` ranks, each on a thread of its own. Throws what the first of them threw.
void on_staged_ranks(int size, const std::function<void(c10d::Backend&)>& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        HostStagedBackend backend(ShmBackend::connect(store, rank, size));
        body(backend);
      } catch (...) {
        failures[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure != nullptr) std::rethrow_exception(failure);
  }
}

constexpr float kUntouched = -7;

/// Returns 1, 2, ... for rank 0 and 101, 102, ... for rank 1.
at::Tensor numbers(int rank, std::int64_t count) {
  return at::arange(1, count + 1).to(at::kFloat) + 100 * rank;
}

TEST(HostStagedBackendTest, GathersWhatWasThereWhenItWasCalled) {
  for (const int size : {2, 3}) {
    on_staged_ranks(size, [size](c10d::Backend& backend) {
      at::Tensor in = numbers(backend.getRank(), 5);
      at::Tensor out = at::full({5 * size}, kUntouched);
      const auto work = backend._allgather_base(out, in, {});
      in.fill_(kUntouched);
      EXPECT_TRUE(out.eq(kUntouched).all().item<bool>());
      work->wait();
      for (int rank = 0; rank < size; ++rank) {
        EXPECT_TRUE(at::equal(out.narrow(0, 5 * rank, 5), numbers(rank, 5)));
      }
    });
  }
}

// The engine casts a rank's part into its place in the output, and gathers from there.
TEST(HostStagedBackendTest, GathersInPlace) {
  on_staged_ranks(2, [](c10d::Backend& backend) {
    at::Tensor out = at::full({6}, kUntouched);
    at::Tensor own = out.narrow(0, 3 * backend.getRank(), 3);
    own.copy_(numbers(backend.getRank(), 3));
    backend._allgather_base(out, own, {})->wait();
    EXPECT_TRUE(at::equal(out, at::cat({numbers(0, 3), numbers(1, 3)})));
  });
}

TEST(HostStagedBackendTest, ReducesAndScatters) {
  on_staged_ranks(3, [](c10d::Backend& backend) {
    const int rank = backend.getRank();
    at::Tensor in = numbers(rank, 6);
    at::Tensor out = at::full({2}, kUntouched);
    c10d::ReduceScatterOptions mean;
    mean.reduceOp = c10d::ReduceOp::AVG;
    const auto work = backend._reduce_scatter_base(out, in, mean);
    in.fill_(kUntouched);
    work->wait();
    EXPECT_TRUE(at::equal(out, numbers(1, 6).narrow(0, 2 * rank, 2)));
    out.fill_(kUntouched);
    work->wait();  // A second wait does nothing.
    EXPECT_EQ(out[0].item<float>(), kUntouched);

    std::vector<at::Tensor> tensors = {numbers(rank, 4).t()};
    backend.allreduce(tensors, {})->wait();
    EXPECT_TRUE(at::equal(tensors[0], 3 * numbers(1, 4)));
  });
}

TEST(HostStagedBackendTest, ExchangesParts) {
  on_staged_ranks(2, [](c10d::Backend& backend) {
    const int rank = backend.getRank();
    at::Tensor in = numbers(rank, 4);
    at::Tensor out = at::full({4}, kUntouched);
    std::vector<std::int64_t> equal_parts;
    const auto work = backend.alltoall_base(out, in, equal_parts, equal_parts, {});
    in.fill_(kUntouched);
    EXPECT_TRUE(out.eq(kUntouched).all().item<bool>());
    work->wait();
    EXPECT_TRUE(at::equal(
        out, at::cat({numbers(0, 4).narrow(0, 2 * rank, 2), numbers(1, 4).narrow(0, 2 * rank, 2)})));
  });
}

TEST(HostStagedBackendTest, SendsFromOneRank) {
  on_staged_ranks(2, [](c10d::Backend& backend) {
    const int rank = backend.getRank();
    std::vector<at::Tensor> tensors = {numbers(rank, 3)};
    c10d::BroadcastOptions from_1;
    from_1.rootRank = 1;
    backend.broadcast(tensors, from_1)->wait();
    EXPECT_TRUE(at::equal(tensors[0], numbers(1, 3)));

    std::vector<at::Tensor> outputs = {at::full({3}, kUntouched)};
    std::vector<std::vector<at::Tensor>> parts;
    if (rank == 0) parts = {{numbers(5, 3), numbers(6, 3)}};
    backend.scatter(outputs, parts, {})->wait();
    EXPECT_TRUE(at::equal(outputs[0], numbers(5 + rank, 3)));
  });
}

TEST(HostStagedBackendTest, AFailureIsThrownByWait) {
  on_staged_ranks(2, [](c10d::Backend& backend) {
    at::Tensor in = numbers(backend.getRank(), 2 + backend.getRank());
    at::Tensor out = at::full({2 * in.numel()}, kUntouched);
    const auto work = backend._allgather_base(out, in, {});
    EXPECT_THROW(work->wait(), std::exception);
    EXPECT_TRUE(out.eq(kUntouched).all().item<bool>());
  });
}

}  // namespace
}  // namespace accel::train
