#include "base/host/block_cache.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <new>
#include <random>
#include <thread>
#include <vector>

namespace accel {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(BlockCacheTest, ABlockOfTheSameSizeIsHandedOutAgain) {
  BlockCache cache;
  void* first = cache.take(3 * kMiB);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % (2 * kMiB), 0U);
  std::memset(first, 1, 3 * kMiB);
  EXPECT_TRUE(cache.give(first));
  void* second = cache.take(3 * kMiB);
  EXPECT_EQ(second, first);
  EXPECT_EQ(static_cast<char*>(second)[2 * kMiB], 1);  // Not filled with zeros in between.
  EXPECT_TRUE(cache.give(second));
  EXPECT_EQ(cache.counts().mapped, 1U);
  EXPECT_EQ(cache.counts().reused, 1U);
}

TEST(BlockCacheTest, ALittleLargerServesMuchLargerDoesNot) {
  BlockCache cache;
  EXPECT_TRUE(cache.give(cache.take(9 * kMiB)));
  EXPECT_TRUE(cache.give(cache.take(8 * kMiB)));
  EXPECT_EQ(cache.counts().reused, 1U);
  EXPECT_TRUE(cache.give(cache.take(7 * kMiB)));
  EXPECT_EQ(cache.counts().reused, 1U);
}

TEST(BlockCacheTest, WhatIsMappedIsNeverMoreThanWasAskedForAtOnce) {
  BlockCache cache;
  std::mt19937 random(1);
  std::vector<void*> held;
  for (int i = 0; i < 3000; ++i) {
    if (held.empty() || random() % 2 == 0) {
      held.push_back(cache.take((1 + random() % 64) * kMiB / 8 + random() % 5000));
    } else {
      std::swap(held[random() % held.size()], held.back());
      ASSERT_TRUE(cache.give(held.back()));
      held.pop_back();
    }
    const BlockCache::Counts counts = cache.counts();
    // A block that serves a smaller request is up to an eighth too large.
    ASSERT_LE(counts.mapped_bytes, counts.peak_bytes + counts.peak_bytes / 8) << i;
    ASSERT_GE(counts.mapped_bytes, counts.live_bytes);
  }
  EXPECT_GT(cache.counts().reused, 500U);
  for (void* block : held) ASSERT_TRUE(cache.give(block));
  EXPECT_EQ(cache.counts().live_bytes, 0U);
}

TEST(BlockCacheTest, StepsThatAreAlikeHardlyAskTheSystem) {
  BlockCache cache;
  std::uint64_t before = 0;
  for (int step = 0; step < 4; ++step) {
    before = cache.counts().mapped;
    std::vector<void*> activations;
    for (std::size_t layer = 0; layer < 8; ++layer) {
      for (const std::size_t mib : {2, 6, 8, 8}) activations.push_back(cache.take(mib * kMiB));
    }
    void* logits = cache.take(32 * kMiB);
    ASSERT_TRUE(cache.give(logits));
    while (!activations.empty()) {
      void* gradient = cache.take(8 * kMiB);
      ASSERT_TRUE(cache.give(activations.back()));
      activations.pop_back();
      ASSERT_TRUE(cache.give(gradient));
    }
  }
  // There are 41 blocks per step. The first gradient takes the place of the logits, the largest block, and
  // the logits take the place of the gradient.
  EXPECT_LE(cache.counts().mapped - before, 2U);
}

TEST(BlockCacheTest, APhaseThatIsOverDoesNotSetThePeak) {
  BlockCache cache;
  void* whole = cache.take(64 * kMiB);  // A model that is then cut into shards.
  void* shard = cache.take(8 * kMiB);
  ASSERT_TRUE(cache.give(whole));
  EXPECT_EQ(cache.counts().mapped_bytes, 72 * kMiB);
  cache.reset_peak();
  EXPECT_EQ(cache.counts().mapped_bytes, 8 * kMiB);
  EXPECT_EQ(cache.counts().peak_bytes, 8 * kMiB);
  for (const std::size_t mib : {3, 5, 7, 9, 11, 13}) ASSERT_TRUE(cache.give(cache.take(mib * kMiB)));
  // The blocks of all sizes are 48 MiB, of which 13 were in use at once.
  EXPECT_LE(cache.counts().mapped_bytes, 21 * kMiB);
  ASSERT_TRUE(cache.give(shard));
}

TEST(BlockCacheTest, WhatIsNotItsOwnIsLeftAlone) {
  BlockCache cache;
  int other = 0;
  EXPECT_FALSE(cache.give(&other));
  EXPECT_FALSE(cache.give(nullptr));
  void* block = cache.take(kMiB);
  EXPECT_TRUE(cache.give(block));
  EXPECT_FALSE(cache.give(block));  // The second time.
}

TEST(BlockCacheTest, AnImpossibleRequestThrowsAndWhatIsThereStays) {
  BlockCache cache;
  auto* block = static_cast<char*>(cache.take(kMiB));
  block[0] = 7;
  EXPECT_TRUE(cache.give(cache.take(4 * kMiB)));
  EXPECT_THROW((void)cache.take(std::size_t{1} << 50), std::bad_alloc);
  EXPECT_THROW((void)cache.take(~std::size_t{0}), std::bad_alloc);
  EXPECT_EQ(block[0], 7);
  EXPECT_EQ(cache.counts().live_bytes, kMiB);
  EXPECT_EQ(cache.counts().mapped_bytes, kMiB);  // The attempt has unmapped the kept blocks.
  EXPECT_EQ(cache.counts().peak_bytes, 5 * kMiB);
  EXPECT_TRUE(cache.give(block));
}

TEST(BlockCacheTest, ThreadsHaveBlocksOfTheirOwn) {
  BlockCache cache;
  std::vector<std::thread> threads;
  for (int id = 0; id < 4; ++id) {
    threads.emplace_back([&cache, id] {
      for (int i = 0; i < 400; ++i) {
        auto* block = static_cast<char*>(cache.take(kMiB + static_cast<std::size_t>(i % 7) * 100'000));
        block[0] = static_cast<char>(id);
        block[kMiB - 1] = static_cast<char>(id);
        std::this_thread::yield();
        EXPECT_EQ(block[0], id);
        EXPECT_EQ(block[kMiB - 1], id);
        EXPECT_TRUE(cache.give(block));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cache.counts().live_bytes, 0U);
}

}  // namespace
}  // namespace accel
