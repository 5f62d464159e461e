#include "data/formats/best_fit.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace accel {
namespace {

using Lists = std::vector<std::vector<std::uint32_t>>;

Lists lists_of(const Packs& packs) {
  Lists lists;
  for (std::int64_t i = 0; i < packs.size(); ++i) {
    const auto pack = packs.pack(i);
    lists.emplace_back(pack.begin(), pack.end());
  }
  return lists;
}

TEST(BestFitTest, EachDocumentGoesWhereItLeavesTheLeastRoom) {
  // 7 and 6 open packs; 4 fills the second; 3 fills the first; 2 and 2 need a third.
  EXPECT_EQ(lists_of(pack_best_fit(std::vector<std::uint32_t>{2, 7, 3, 6, 2, 4}, 10)),
            (Lists{{1, 2}, {3, 5}, {0, 4}}));
  // The example in the documentation of trl's pack_dataset(), whose first document is cut to 4 tokens.
  EXPECT_EQ(lists_of(pack_best_fit(std::vector<std::uint32_t>{4, 2, 3, 1}, 4)), (Lists{{0}, {2, 3}, {1}}));
  EXPECT_EQ(pack_best_fit({}, 4).size(), 0);
}

/// Best fit decreasing by its definition: of all packs the one with the least room that is enough.
Lists packed_slowly(const std::vector<std::uint32_t>& lengths, std::int64_t capacity) {
  std::vector<std::uint32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return lengths[a] > lengths[b]; });
  Lists packs;
  std::vector<std::int64_t> room;
  for (const std::uint32_t document : order) {
    std::size_t best = packs.size();
    for (std::size_t i = 0; i < packs.size(); ++i) {
      if (room[i] >= lengths[document] && (best == packs.size() || room[i] < room[best])) best = i;
    }
    if (best == packs.size()) {
      packs.emplace_back();
      room.push_back(capacity);
    }
    packs[best].push_back(document);
    room[best] -= lengths[document];
  }
  return packs;
}

/// How much room each pack leaves. Among packs with equal room the definition may take any.
std::vector<std::int64_t> rooms_of(const Lists& packs, const std::vector<std::uint32_t>& lengths,
                                   std::int64_t capacity) {
  std::vector<std::int64_t> rooms;
  for (const auto& pack : packs) {
    rooms.push_back(capacity);
    for (const std::uint32_t document : pack) rooms.back() -= lengths.at(document);
  }
  std::sort(rooms.begin(), rooms.end());
  return rooms;
}

RC_GTEST_PROP(BestFitTest, PacksHaveEachDocumentOnceAndAreThoseOfTheDefinition, ()) {
  const auto capacity = *rc::gen::inRange<std::int64_t>(1, 40);
  const auto lengths = *rc::gen::container<std::vector<std::uint32_t>>(
      rc::gen::inRange<std::uint32_t>(1, static_cast<std::uint32_t>(capacity) + 1));
  const Packs packs = pack_best_fit(lengths, capacity);
  std::vector<std::uint32_t> documents = packs.documents;
  std::sort(documents.begin(), documents.end());
  std::vector<std::uint32_t> all(lengths.size());
  std::iota(all.begin(), all.end(), 0U);
  RC_ASSERT(documents == all);
  const auto rooms = rooms_of(lists_of(packs), lengths, capacity);
  RC_ASSERT(std::all_of(rooms.begin(), rooms.end(), [](std::int64_t room) { return room >= 0; }));
  RC_ASSERT(rooms == rooms_of(packed_slowly(lengths, capacity), lengths, capacity));
}

// A search through all packs for each document would take days.
TEST(BestFitTest, AMillionDocumentsArePacked) {
  std::vector<std::uint32_t> lengths(1'000'000);
  std::uint64_t state = 1;
  for (std::uint32_t& length : lengths) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    length = 1 + static_cast<std::uint32_t>((state >> 33) % 2048);
  }
  const Packs packs = pack_best_fit(lengths, 2048);
  const auto total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  EXPECT_GE(packs.size() * 2048, total);
  EXPECT_LT((packs.size() - 1) * 2048, total + total / 100) << "uniform lengths leave less than 1% empty";
}

}  // namespace
}  // namespace accel
