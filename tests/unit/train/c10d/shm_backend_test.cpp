#include "train/c10d/shm_backend.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "ranks_as_threads.hpp"
#include "train/c10d/shm_rendezvous.hpp"

namespace accel::train {
namespace {

using namespace std::chrono_literals;
using Store = c10::intrusive_ptr<c10d::Store>;
using Backend = c10::intrusive_ptr<c10d::Backend>;

/// The numbers of elements of a rank's part: none, one, odd, and more than all slots of a rank hold.
const std::vector<std::int64_t> kLengths = {0, 1, 37, 5003};
const std::vector<at::ScalarType> kReduced = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong,
                                              at::kInt,   at::kShort,  at::kChar,     at::kByte};

/// Runs `body` as `size` ranks with a store, each on a thread of its own. Throws what the first of them
/// threw.
void on_store(int size, const std::function<void(int rank, const Store&)>& body) {
  const Store store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank, store);
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

Backend shm(const Store& store, int rank, int size, std::chrono::milliseconds timeout = 60s) {
  auto options = c10::make_intrusive<ShmBackend::Options>();
  options->geometry = {.slot_bytes = 512, .slots = 3};
  options->timeout = timeout;
  return ShmBackend::connect(store, rank, size, options);
}

void on_ranks(int size, const std::function<void(c10d::Backend&)>& body) {
  on_store(size, [&](int rank, const Store& store) { body(*shm(store, rank, size)); });
}

/// Runs `body` with our backend and with Gloo, for 1 to 4 ranks.
void beside_gloo(const std::function<void(c10d::Backend& ours, c10d::Backend& gloo)>& body) {
  for (const int size : {1, 2, 3, 4}) {
    on_store(size, [&](int rank, const Store& store) {
      const Backend ours = shm(store, rank, size);
      const auto options = c10d::ProcessGroupGloo::Options::create();
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
      const Backend gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(
          c10::make_intrusive<c10d::PrefixStore>("gloo", store), rank, size, options);
      body(*ours, *gloo);
      ours->barrier({})->wait();
      gloo->barrier({})->wait();
    });
  }
}

/// Returns random values that are the same on every rank for the same `of`.
at::Tensor random_of(int of, std::int64_t length, at::ScalarType dtype) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(of) * 100 + 5);
  if (at::isFloatingType(dtype)) {
    const at::Tensor sizes = at::pow(10, at::randint(0, 4, {length}, generator, at::kDouble));
    return (at::randn({length}, generator, at::kDouble) * sizes).to(dtype);
  }
  return at::randint(0, 30, {length}, generator, at::kLong).to(dtype);
}

/// Returns the sum of random_of(0), random_of(1), ... in that order. 16-bit floats are added up in float32.
at::Tensor sum_in_rank_order(int size, std::int64_t length, at::ScalarType dtype) {
  const bool half = dtype == at::kHalf || dtype == at::kBFloat16;
  at::Tensor sum = random_of(0, length, dtype).to(half ? at::kFloat : dtype);
  for (int rank = 1; rank < size; ++rank) sum = sum + random_of(rank, length, dtype).to(sum.scalar_type());
  return sum;
}

bool gloo_reduces(at::ScalarType dtype) { return dtype != at::kShort && dtype != at::kBFloat16; }

/// Gloo adds in another order, and rounds 16-bit floats at every addition.
void expect_near(const at::Tensor& ours, const at::Tensor& gloo) {
  if (!at::isFloatingType(ours.scalar_type())) {
    EXPECT_TRUE(at::equal(ours, gloo));
    return;
  }
  const double unit = ours.scalar_type() == at::kDouble  ? 1e-15
                      : ours.scalar_type() == at::kFloat ? 1e-6
                                                         : 2e-2;
  EXPECT_TRUE(at::allclose(ours.to(at::kDouble), gloo.to(at::kDouble), unit, 3e4 * unit));
}

TEST(ShmBackendTest, AllGatherEqualsGloo) {
  beside_gloo([](c10d::Backend& ours, c10d::Backend& gloo) {
    for (const at::ScalarType dtype :
         {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt, at::kChar, at::kByte}) {
      for (const std::int64_t length : kLengths) {
        at::Tensor in = random_of(ours.getRank(), length, dtype);
        at::Tensor out = at::zeros({length * ours.getSize()}, dtype);
        ours._allgather_base(out, in, {})->wait();
        std::vector<at::Tensor> parts;
        for (int rank = 0; rank < ours.getSize(); ++rank) parts.push_back(random_of(rank, length, dtype));
        EXPECT_TRUE(at::equal(out, at::cat(parts)));
        if (length == 0) continue;  // Gloo refuses empty tensors.
        at::Tensor theirs = at::zeros_like(out);
        gloo._allgather_base(theirs, in, {})->wait();
        EXPECT_TRUE(at::equal(out, theirs));
      }
    }
  });
}

TEST(ShmBackendTest, AllGatherTakesEveryDtype) {
  on_ranks(2, [](c10d::Backend& ours) {
    for (const at::ScalarType dtype :
         {at::kShort, at::kBool, at::kComplexFloat, at::kComplexDouble, at::kFloat8_e4m3fn, at::kUInt16}) {
      at::Tensor bytes = random_of(ours.getRank(), 64, at::kByte).remainder(2);
      at::Tensor in = bytes.view(dtype);
      at::Tensor out = at::zeros({128}, at::kByte).view(dtype);
      ours._allgather_base(out, in, {})->wait();
      EXPECT_TRUE(at::equal(out.view(at::kByte), at::cat({random_of(0, 64, at::kByte).remainder(2),
                                                          random_of(1, 64, at::kByte).remainder(2)})));
    }
  });
}

TEST(ShmBackendTest, ReduceScatterAddsInRankOrderAndEqualsGloo) {
  beside_gloo([](c10d::Backend& ours, c10d::Backend& gloo) {
    const int size = ours.getSize();
    for (const at::ScalarType dtype : kReduced) {
      for (const std::int64_t length : kLengths) {
        at::Tensor in = random_of(ours.getRank(), length * size, dtype);
        at::Tensor sum = at::zeros({length}, dtype);
        const at::Tensor before = in.clone();
        ours._reduce_scatter_base(sum, in, {})->wait();
        EXPECT_TRUE(at::equal(in, before));
        const at::Tensor wide =
            sum_in_rank_order(size, length * size, dtype).narrow(0, ours.getRank() * length, length);
        EXPECT_TRUE(at::equal(sum, wide.to(dtype))) << dtype << " " << length;
        if (at::isFloatingType(dtype)) {
          c10d::ReduceScatterOptions average;
          average.reduceOp = c10d::ReduceOp::AVG;
          at::Tensor mean = at::zeros({length}, dtype);
          ours._reduce_scatter_base(mean, in, average)->wait();
          EXPECT_TRUE(at::equal(mean, (wide / static_cast<double>(size)).to(dtype)))
              << dtype << " " << length;
        }
        if (length == 0 || !gloo_reduces(dtype)) continue;
        at::Tensor theirs = at::zeros_like(sum);
        gloo._reduce_scatter_base(theirs, in, {})->wait();
        expect_near(sum, theirs);
      }
    }
  });
}

TEST(ShmBackendTest, AllReduceAddsInRankOrderAndEqualsGloo) {
  beside_gloo([](c10d::Backend& ours, c10d::Backend& gloo) {
    for (const at::ScalarType dtype : kReduced) {
      for (const std::int64_t length : kLengths) {
        std::vector<at::Tensor> sum = {random_of(ours.getRank(), length, dtype)};
        ours.allreduce(sum, {})->wait();
        EXPECT_TRUE(at::equal(sum[0], sum_in_rank_order(ours.getSize(), length, dtype).to(dtype)));
        if (length == 0 || !gloo_reduces(dtype)) continue;
        std::vector<at::Tensor> theirs = {random_of(ours.getRank(), length, dtype)};
        gloo.allreduce(theirs, {})->wait();
        expect_near(sum[0], theirs[0]);
        for (const auto op : {c10d::ReduceOp::MAX, c10d::ReduceOp::MIN}) {
          c10d::AllreduceOptions options;
          options.reduceOp = op;
          std::vector<at::Tensor> most = {random_of(ours.getRank(), length, dtype)};
          ours.allreduce(most, options)->wait();
          theirs = {random_of(ours.getRank(), length, dtype)};
          gloo.allreduce(theirs, options)->wait();
          EXPECT_TRUE(at::equal(most[0], theirs[0]));
        }
      }
    }
  });
}

TEST(ShmBackendTest, BroadcastEqualsGloo) {
  beside_gloo([](c10d::Backend& ours, c10d::Backend& gloo) {
    for (int root = 0; root < ours.getSize(); ++root) {
      for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kLong, at::kByte}) {
        for (const std::int64_t length : kLengths) {
          c10d::BroadcastOptions options;
          options.rootRank = root;
          std::vector<at::Tensor> tensors = {random_of(ours.getRank(), length, dtype)};
          ours.broadcast(tensors, options)->wait();
          EXPECT_TRUE(at::equal(tensors[0], random_of(root, length, dtype)));
          if (length == 0) continue;
          std::vector<at::Tensor> theirs = {random_of(ours.getRank(), length, dtype)};
          gloo.broadcast(theirs, options)->wait();
          EXPECT_TRUE(at::equal(tensors[0], theirs[0]));
        }
      }
    }
  });
}

TEST(ShmBackendTest, ScatterEqualsGloo) {
  beside_gloo([](c10d::Backend& ours, c10d::Backend& gloo) {
    for (const std::int64_t length : kLengths) {
      if (length == 0) continue;  // Gloo refuses empty tensors.
      for (int root = 0; root < ours.getSize(); ++root) {
        c10d::ScatterOptions options;
        options.rootRank = root;
        std::vector<std::vector<at::Tensor>> parts;
        if (ours.getRank() == root) {
          parts.emplace_back();
          for (int rank = 0; rank < ours.getSize(); ++rank)
            parts.front().push_back(at::arange(length) * (rank + 1) + root);
        }
        std::vector<at::Tensor> out = {at::zeros({length}, at::kLong)};
        std::vector<at::Tensor> expected = {at::zeros({length}, at::kLong)};
        ours.scatter(out, parts, options)->wait();
        gloo.scatter(expected, parts, options)->wait();
        EXPECT_TRUE(at::equal(out[0], expected[0]));
        EXPECT_TRUE(at::equal(out[0], at::arange(length) * (ours.getRank() + 1) + root));
      }
    }
  });
}

TEST(ShmBackendTest, CollectivesAreIssuedAheadAndDoneInOrder) {
  std::atomic<bool> issued = false;
  on_ranks(2, [&](c10d::Backend& ours) {
    if (ours.getRank() == 1) {
      while (!issued) std::this_thread::sleep_for(1ms);
    }
    constexpr int kMany = 20;
    std::vector<at::Tensor> outs;
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    for (int i = 0; i < kMany; ++i) {
      at::Tensor in = at::full({3000}, ours.getRank() * 100 + i, at::kFloat);
      outs.push_back(at::zeros({6000}));
      works.push_back(ours._allgather_base(outs.back(), in, {}));
      // Only the work holds `in`.
    }
    if (ours.getRank() == 0) {
      std::this_thread::sleep_for(20ms);
      for (const auto& work : works) EXPECT_FALSE(work->isCompleted());
      issued = true;
    }
    works.back()->wait();
    for (int i = 0; i < kMany; ++i) {
      const auto index = static_cast<std::size_t>(i);
      EXPECT_TRUE(works[index]->isCompleted() && works[index]->isSuccess());
      EXPECT_TRUE(at::equal(
          outs[index], at::cat({at::full({3000}, i, at::kFloat), at::full({3000}, 100 + i, at::kFloat)})));
      EXPECT_TRUE(at::equal(works[index]->result().at(0), outs[index]));
      const auto future = works[index]->getFuture();
      future->wait();
      EXPECT_TRUE(at::equal(future->value().toTensorVector().at(0), outs[index]));
    }
  });
}

TEST(ShmBackendTest, WaitThrowsWhatWentWrong) {
  on_store(2, [](int rank, const Store& store) {
    const Backend ours = shm(store, rank, 2, 300ms);
    at::Tensor in = at::ones({10 + rank});
    at::Tensor out = at::zeros({2 * (10 + rank)});
    const auto first = ours->_allgather_base(out, in, {});
    const auto second = ours->barrier({});
    try {
      first->wait();
      ADD_FAILURE() << "the ranks disagree";
    } catch (const Error& error) {
      EXPECT_NE(error.message().find("the ranks disagree"), std::string::npos) << error.message();
      EXPECT_NE(error.message().find("all-gather of 11 float32 on rank 1"), std::string::npos)
          << error.message();
    }
    EXPECT_THROW(second->wait(), Error);
    EXPECT_FALSE(first->isSuccess());
    EXPECT_TRUE(first->getFuture()->hasError());
    EXPECT_THROW(ours->barrier({})->wait(), Error);
  });
}

TEST(ShmBackendTest, TimesOutAfterItsOwnOrTheCallsTime) {
  on_store(2, [](int rank, const Store& store) {
    static std::atomic<bool> done;
    done = false;
    const Backend ours = shm(store, rank, 2, 60s);
    ours->barrier({})->wait();
    if (rank == 1) {
      while (!done) std::this_thread::sleep_for(1ms);
      return;
    }
    c10d::AllreduceOptions options;
    options.timeout = 150ms;
    std::vector<at::Tensor> tensors = {at::ones({4})};
    try {
      ours->allreduce(tensors, options)->wait();
      ADD_FAILURE() << "rank 1 does not come";
    } catch (const Error& error) {
      EXPECT_TRUE(error.message().starts_with("all-reduce of 4 float32 (collective 2) failed after "))
          << error.message();
      EXPECT_NE(error.message().find(" s: rank 1 did not come within 0.15 s"), std::string::npos)
          << error.message();
    }
    done = true;
  });
}

TEST(ShmBackendTest, IsDestroyedAtOnceWithAWorkUnderWay) {
  std::atomic<bool> destroyed = false;
  on_store(2, [&](int rank, const Store& store) {
    Backend ours = shm(store, rank, 2);
    if (rank == 1) {
      while (!destroyed) std::this_thread::sleep_for(1ms);
      EXPECT_THROW(ours->barrier({})->wait(), Error);
      return;
    }
    const auto work = ours->barrier({});
    const auto queued = ours->barrier({});
    const auto start = std::chrono::steady_clock::now();
    ours.reset();
    EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
    destroyed = true;
    EXPECT_THROW(work->wait(), Error);
    EXPECT_THROW(queued->wait(), Error);
  });
}

TEST(ShmBackendTest, RefusesWhatItCannotDo) {
  on_ranks(1, [](c10d::Backend& ours) {
    const auto refusal = [](const std::function<void()>& action) -> std::string {
      try {
        action();
      } catch (const Error& error) {
        return error.message();
      }
      return "nothing";
    };
    const auto gather = [&](at::Tensor out, at::Tensor in) {
      return refusal([&] { ours._allgather_base(out, in, {})->wait(); });
    };
    const auto all_reduce = [&](std::vector<at::Tensor> tensors, c10d::ReduceOp::RedOpType op) {
      c10d::AllreduceOptions options;
      options.reduceOp = op;
      return refusal([&] { ours.allreduce(tensors, options)->wait(); });
    };
    EXPECT_EQ(gather(at::ones({4}), at::ones({3})),
              "shm: all-gather: 4 elements are not 1 ranks' parts of 3");
    EXPECT_EQ(gather(at::ones({4}), at::ones({4}, at::kDouble)),
              "shm: all-gather: input and output are float64 and float32");
    EXPECT_EQ(gather(at::ones({4}), at::ones({8}).slice(0, 0, 8, 2)),
              "shm: all-gather: takes contiguous tensors");
    EXPECT_EQ(gather(at::ones({4}), at::ones({4}, at::kMeta)),
              "shm: all-gather: takes dense CPU tensors, found one on meta");
    EXPECT_EQ(gather({}, at::ones({4})), "shm: all-gather: a tensor is undefined");
    EXPECT_EQ(all_reduce({}, c10d::ReduceOp::SUM), "shm: all-reduce: takes one tensor, found 0");
    EXPECT_EQ(all_reduce({at::ones({2}, at::kBool)}, c10d::ReduceOp::SUM),
              "shm: all-reduce: bool cannot be reduced");
    EXPECT_EQ(all_reduce({at::ones({2}, at::kLong)}, c10d::ReduceOp::AVG),
              "shm: all-reduce: int64 has no AVG; take the SUM");
    EXPECT_EQ(all_reduce({at::ones({2})}, c10d::ReduceOp::PRODUCT),
              "shm: all-reduce: reduces with SUM, AVG, MAX or MIN, not with operation 2");
    std::vector<at::Tensor> one = {at::ones({2})};
    c10d::BroadcastOptions options;
    options.rootRank = 1;
    EXPECT_EQ(refusal([&] { ours.broadcast(one, options)->wait(); }),
              "shm: broadcast: there is no rank 1 among 1");
    c10d::ScatterOptions from;
    from.rootRank = 1;
    std::vector<std::vector<at::Tensor>> parts = {{at::ones({2})}};
    EXPECT_EQ(refusal([&] { ours.scatter(one, parts, from)->wait(); }),
              "shm: scatter: there is no rank 1 among 1");
    std::vector<std::vector<at::Tensor>> none;
    EXPECT_EQ(refusal([&] { ours.scatter(one, none, {})->wait(); }),
              "shm: scatter: takes one list of 1 input tensors, from rank 0 only");
    parts = {{at::ones({3})}};
    EXPECT_EQ(refusal([&] { ours.scatter(one, parts, {})->wait(); }),
              "shm: scatter: 2 elements are not 1 ranks' parts of 3");
    // The backend still works after the errors.
    EXPECT_EQ(gather(at::zeros({4}), at::ones({4})), "nothing");
  });
}

TEST(ShmRendezvousTest, IfOneCannotAllThrowTheSame) {
  // Rank 1 writes what a rank on another machine would write.
  const Store store = c10::make_intrusive<c10d::HashStore>();
  ProcessIdentity elsewhere = ProcessIdentity::self();
  elsewhere.boot = "another-boot";
  const std::string text = elsewhere.text();
  store->set("shm/identity/1", std::vector<std::uint8_t>(text.begin(), text.end()));
  const std::string refusal = "!rank 0 is on another machine";
  store->set("shm/found/1", std::vector<std::uint8_t>(refusal.begin(), refusal.end()));
  try {
    rendezvous_on_this_machine(*store, 0, 2, 4096);
    ADD_FAILURE() << "rank 1 is elsewhere";
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "rank 0 cannot share memory with the others: rank 1 is on another machine");
    EXPECT_EQ(error.advice(), "use backend: gloo");
  }
}

}  // namespace
}  // namespace accel::train
