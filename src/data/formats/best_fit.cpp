#include "data/formats/best_fit.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <queue>

#include "base/interrupt.hpp"

namespace accel {
namespace {

constexpr std::size_t kBetweenInterrupts = 1 << 16;

/// The numbers of the documents, the longest first.
std::vector<std::uint32_t> by_length(std::span<const std::uint32_t> lengths) {
  std::vector<std::uint32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::uint32_t{0});
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return lengths[a] != lengths[b] ? lengths[a] > lengths[b] : a < b;
  });
  return order;
}

}  // namespace

Packs pack_best_fit(std::span<const std::uint32_t> lengths, std::int64_t capacity) {
  const std::vector<std::uint32_t> order = by_length(lengths);
  std::vector<std::uint32_t> pack_of(lengths.size());
  std::map<std::int64_t, std::queue<std::uint32_t>> packs_with_room;  // By the tokens that still fit.
  std::uint32_t count = 0;
  std::size_t done = 0;
  for (const std::uint32_t document : order) {
    if (done++ % kBetweenInterrupts == 0) check_interrupted();
    const std::int64_t length = lengths[document];
    std::int64_t room = capacity;
    const auto best = packs_with_room.lower_bound(length);
    if (best == packs_with_room.end()) {
      pack_of[document] = count++;
    } else {
      room = best->first;
      pack_of[document] = best->second.front();
      best->second.pop();
      if (best->second.empty()) packs_with_room.erase(best);
    }
    if (room > length) packs_with_room[room - length].push(pack_of[document]);
  }
  // A counting sort by pack keeps the order of the documents.
  Packs packs{std::vector<std::uint32_t>(lengths.size()), std::vector<std::uint32_t>(count + std::size_t{1})};
  for (const std::uint32_t pack : pack_of) ++packs.begins[pack + std::size_t{1}];
  std::partial_sum(packs.begins.begin(), packs.begins.end(), packs.begins.begin());
  std::vector<std::uint32_t> next(packs.begins.begin(), packs.begins.end() - 1);
  for (const std::uint32_t document : order) packs.documents[next[pack_of[document]]++] = document;
  return packs;
}

}  // namespace accel
