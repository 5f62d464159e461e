#include "ranks/shared_collectives.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <vector>

#include "ranks/shm_ranks.hpp"

namespace accel {
namespace {

using namespace std::chrono_literals;
constexpr auto kTimeout = 60s;

/// The numbers of elements of one rank's part: none, one, within a piece, exactly a piece, one more, many
/// rounds through all slots.
constexpr std::size_t kLengths[] = {0, 1, 7, 64, 65, 1000, 5001};
constexpr SlotGeometry kGeometries[] = {{256, 1}, {256, 2}, {320, 3}, {4096, 4}};

/// Returns the value of rank `rank` at `i`. The values differ in size, so that the order of sums shows.
float value_of(int rank, std::size_t i) {
  std::minstd_rand random(static_cast<unsigned>(i * 31 + static_cast<std::size_t>(rank) * 7919 + 1));
  random.discard(2);
  const float digits = static_cast<float>(random() % 100'000) / 7.0F - 7000.0F;
  return rank % 2 == 0 ? digits : digits * 1e4F;
}

std::vector<float> values_of(int rank, std::size_t length) {
  std::vector<float> values(length);
  for (std::size_t i = 0; i < length; ++i) values[i] = value_of(rank, i);
  return values;
}

float sum_at(int ranks, std::size_t i) {
  float sum = value_of(0, i);
  for (int rank = 1; rank < ranks; ++rank) sum += value_of(rank, i);
  return sum;
}

std::span<std::byte> bytes(std::vector<float>& values) { return std::as_writable_bytes(std::span(values)); }

/// Runs the test with every world size and every geometry.
void everywhere(const std::function<void(Lockstep&, SharedCollectives&)>& body) {
  for (const SlotGeometry& geometry : kGeometries) {
    for (const int size : {1, 2, 3, 4}) {
      on_ranks(size, geometry, [&](Lockstep& ranks) {
        SharedCollectives collectives(ranks);
        body(ranks, collectives);
      });
    }
  }
}

TEST(SharedCollectivesTest, AllToAllGivesEachRankItsPartOfAll) {
  everywhere([](Lockstep& ranks, SharedCollectives& collectives) {
    const auto size = static_cast<std::size_t>(ranks.size());
    for (const std::size_t length : kLengths) {
      std::vector<float> in = values_of(ranks.rank(), length * size);
      std::vector<float> out(length * size);
      collectives.all_to_all(bytes(in), bytes(out), "float32", 4, kTimeout);
      for (std::size_t rank = 0; rank < size; ++rank) {
        for (std::size_t i = 0; i < length; ++i) {
          const std::size_t there = static_cast<std::size_t>(ranks.rank()) * length + i;
          ASSERT_EQ(out[rank * length + i], value_of(static_cast<int>(rank), there));
        }
      }
    }
  });
}

TEST(SharedCollectivesTest, AllGatherGivesEveryRanksPart) {
  everywhere([](Lockstep& ranks, SharedCollectives& collectives) {
    for (const std::size_t length : kLengths) {
      std::vector<float> in = values_of(ranks.rank(), length);
      std::vector<float> out(length * static_cast<std::size_t>(ranks.size()));
      std::vector<std::byte*> outs;
      for (int rank = 0; rank < ranks.size(); ++rank)
        outs.push_back(bytes(out).data() + static_cast<std::size_t>(rank) * length * sizeof(float));
      collectives.all_gather(bytes(in), outs, "float32", 4, kTimeout);
      for (int rank = 0; rank < ranks.size(); ++rank) {
        const auto part = out.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rank) * length);
        EXPECT_EQ(std::vector<float>(part, part + static_cast<std::ptrdiff_t>(length)),
                  values_of(rank, length));
      }
      // In place: the input is this rank's part of the output.
      const std::vector<float> expected = out;
      const std::size_t own = static_cast<std::size_t>(ranks.rank()) * length;
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = i >= own && i < own + length ? out[i] : -1.0F;
      collectives.all_gather(bytes(out).subspan(own * 4, length * 4), outs, "float32", 4, kTimeout);
      EXPECT_EQ(out, expected);
    }
  });
}

TEST(SharedCollectivesTest, ReduceScatterAddsInRankOrder) {
  everywhere([](Lockstep& ranks, SharedCollectives& collectives) {
    for (const std::size_t length : kLengths) {
      const std::size_t own = static_cast<std::size_t>(ranks.rank()) * length;
      const std::vector<float> all = values_of(ranks.rank(), length * static_cast<std::size_t>(ranks.size()));
      std::vector<float> in = all;
      std::vector<float> sum(length);
      collectives.reduce_scatter(bytes(in), bytes(sum), Element::kFloat32, Reduction::kSum, kTimeout);
      EXPECT_EQ(in, all) << "the input is to be left alone";
      for (std::size_t i = 0; i < length; ++i) ASSERT_EQ(sum[i], sum_at(ranks.size(), own + i)) << i;
      // The mean is taken in place.
      collectives.reduce_scatter(bytes(in), bytes(in).subspan(own * 4, length * 4), Element::kFloat32,
                                 Reduction::kMean, kTimeout);
      for (std::size_t i = 0; i < length; ++i)
        ASSERT_EQ(in[own + i], sum_at(ranks.size(), own + i) / static_cast<float>(ranks.size())) << i;
    }
  });
}

TEST(SharedCollectivesTest, AllReduceAddsInRankOrder) {
  everywhere([](Lockstep& ranks, SharedCollectives& collectives) {
    for (const std::size_t length : kLengths) {
      std::vector<float> data = values_of(ranks.rank(), length);
      collectives.all_reduce(bytes(data), Element::kFloat32, Reduction::kSum, kTimeout);
      for (std::size_t i = 0; i < length; ++i)
        ASSERT_EQ(data[i], sum_at(ranks.size(), i)) << i << " of " << length;
    }
  });
}

TEST(SharedCollectivesTest, BroadcastGivesTheRootsData) {
  everywhere([](Lockstep& ranks, SharedCollectives& collectives) {
    for (int root = 0; root < ranks.size(); ++root) {
      for (const std::size_t length : kLengths) {
        std::vector<float> data = values_of(ranks.rank(), length);
        collectives.broadcast(bytes(data), root, "float32", 4, kTimeout);
        EXPECT_EQ(data, values_of(root, length));
      }
    }
  });
}

TEST(SharedCollectivesTest, ScatterGivesEachRankItsPart) {
  everywhere([](Lockstep& ranks, SharedCollectives& collectives) {
    for (int root = 0; root < ranks.size(); ++root) {
      for (const std::size_t length : kLengths) {
        // The root's own part is in place every other time.
        std::vector<std::vector<float>> parts;
        std::vector<float> out(length);
        std::vector<const std::byte*> ins;
        for (int rank = 0; ranks.rank() == root && rank < ranks.size(); ++rank)
          parts.push_back(values_of(rank, length));
        for (std::vector<float>& part : parts) ins.push_back(bytes(part).data());
        if (ranks.rank() == root && length % 2 == 0) {
          out = parts[static_cast<std::size_t>(root)];
          ins[static_cast<std::size_t>(root)] = bytes(out).data();
        }
        collectives.scatter(ins, bytes(out), root, "float32", 4, kTimeout);
        EXPECT_EQ(out, values_of(ranks.rank(), length));
      }
    }
  });
}

TEST(SharedCollectivesTest, NoRankPassesABarrierBeforeAllHaveCome) {
  std::atomic<int> come = 0;
  on_ranks(4, kSmallSlots, [&](Lockstep& ranks) {
    SharedCollectives collectives(ranks);
    for (int round = 1; round <= 200; ++round) {
      if (round % 50 == ranks.rank()) std::this_thread::sleep_for(5ms);
      ++come;
      collectives.barrier(kTimeout);
      EXPECT_GE(come, 4 * round);
      // Other ranks may have begun the next round, but not the one after it.
      EXPECT_LE(come, 4 * round + 3);
    }
  });
}

TEST(SharedCollectivesTest, AnyMixOfCollectivesStaysInStep) {
  on_ranks(3, kSmallSlots, [](Lockstep& ranks) {
    SharedCollectives collectives(ranks);
    std::mt19937 same_everywhere(7);
    for (int round = 0; round < 400; ++round) {
      const std::size_t length = same_everywhere() % 500;
      std::vector<float> data = values_of(ranks.rank(), length);
      switch (same_everywhere() % 3) {
        case 0:
          collectives.all_reduce(bytes(data), Element::kFloat32, Reduction::kSum, kTimeout);
          for (std::size_t i = 0; i < length; ++i) ASSERT_EQ(data[i], sum_at(3, i));
          break;
        case 1:
          collectives.broadcast(bytes(data), round % 3, "float32", 4, kTimeout);
          ASSERT_EQ(data, values_of(round % 3, length));
          break;
        default:
          collectives.barrier(kTimeout);
      }
    }
  });
}

/// Returns what each of two ranks throws that call different collectives.
std::vector<std::string> disagreement(const std::function<void(SharedCollectives&)>& one,
                                      const std::function<void(SharedCollectives&)>& other) {
  std::vector<std::string> errors(2);
  on_ranks(2, kSmallSlots, [&](Lockstep& ranks) {
    SharedCollectives collectives(ranks);
    collectives.barrier(kTimeout);
    errors[static_cast<std::size_t>(ranks.rank())] =
        error_of([&] { (ranks.rank() == 0 ? one : other)(collectives); });
    EXPECT_NE(
        error_of([&] { collectives.barrier(kTimeout); }).find("not started, because an earlier one failed"),
        std::string::npos);
  });
  return errors;
}

TEST(SharedCollectivesTest, RanksThatDisagreeGetAnErrorNotANumber) {
  const auto gather = [](std::size_t length, const char* type) {
    return [=](SharedCollectives& collectives) {
      std::vector<float> in(length);
      std::vector<float> out(length * 2);
      const std::vector<std::byte*> outs = {bytes(out).data(), bytes(out).data() + length * 4};
      collectives.all_gather(bytes(in), outs, type, 4, kTimeout);
    };
  };
  const auto all_reduce = [](Reduction reduction) {
    return [=](SharedCollectives& collectives) {
      std::vector<float> data(10);
      collectives.all_reduce(bytes(data), Element::kFloat32, reduction, kTimeout);
    };
  };
  const auto broadcast = [](int root) {
    return [=](SharedCollectives& collectives) {
      std::vector<float> data(10);
      collectives.broadcast(bytes(data), root, "float32", 4, kTimeout);
    };
  };
  const auto barrier = [](SharedCollectives& collectives) { collectives.barrier(kTimeout); };
  struct Case {
    std::vector<std::string> found;
    std::string part;
  };
  for (const auto& [found, part] : {
           // The longer tensor has more pieces than there are slots.
           Case{disagreement(gather(10, "float32"), gather(1000, "float32")),
                "all-gather of 10 float32 on rank 0"},
           Case{disagreement(gather(10, "float32"), gather(10, "int32")), "all-gather of 10 int32 on rank 1"},
           Case{disagreement(gather(10, "float32"), barrier), "barrier on rank 1"},
           Case{disagreement(broadcast(0), broadcast(1)), "broadcast of 10 float32 from rank 1 on rank 1"},
           Case{disagreement(all_reduce(Reduction::kSum), all_reduce(Reduction::kMean)),
                "with different reductions"},
       }) {
    for (const std::string& error : found) {
      EXPECT_NE(error.find("(collective 2) failed after"), std::string::npos) << error;
      EXPECT_NE(error.find("the ranks disagree: collective 2 is"), std::string::npos) << error;
      EXPECT_NE(error.find(part), std::string::npos) << error;
    }
  }
}

}  // namespace
}  // namespace accel
