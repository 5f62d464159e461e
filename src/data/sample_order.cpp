#include "data/sample_order.hpp"

namespace accel {
namespace {

// The finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

}  // namespace

SampleOrder::SampleOrder(std::int64_t size, bool shuffle, std::uint64_t seed, std::int64_t epoch)
    : size_(static_cast<std::uint64_t>(size)), shuffle_(shuffle) {
  while ((std::uint64_t{1} << (2 * half_bits_)) < size_) ++half_bits_;
  std::uint64_t state =
      mix(seed + 0x9e3779b97f4a7c15U) ^ mix(static_cast<std::uint64_t>(epoch) + 0x632be59bd9b4e019U);
  for (std::uint64_t& key : keys_) {
    state += 0x9e3779b97f4a7c15U;
    key = mix(state);
  }
}

std::int64_t SampleOrder::at(std::int64_t position) const {
  if (!shuffle_) return position;
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<std::uint64_t>(position);
  do {
    std::uint64_t left = value >> half_bits_;
    std::uint64_t right = value & mask;
    for (const std::uint64_t key : keys_) {
      const std::uint64_t next = left ^ (mix(right ^ key) & mask);
      left = right;
      right = next;
    }
    value = (left << half_bits_) | right;
  } while (value >= size_);
  return static_cast<std::int64_t>(value);
}

}  // namespace accel
