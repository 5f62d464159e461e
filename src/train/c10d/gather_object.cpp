#include "train/c10d/gather_object.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <exception>

#include "base/error.hpp"

namespace accel::train {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

}  // namespace

std::vector<std::string> StoreGather::all_gather(std::int64_t round, const std::string& text) const {
  const auto key = [&](int rank) { return fmt::format("accel/all_gather_object/{}/{}", round, rank); };
  store_.set(key(rank_), bytes_of(text));
  std::vector<std::string> all;
  for (int rank = 0; rank < static_cast<int>(members_.size()); ++rank) {
    const Clock::time_point begin = Clock::now();
    try {
      const std::vector<std::uint8_t> bytes = store_.get(key(rank));
      all.emplace_back(bytes.begin(), bytes.end());
    } catch (const std::exception& error) {
      fail(rank, begin, error);
    }
  }
  return all;
}

std::vector<std::string> StoreGather::gather(std::int64_t round, const std::string& text) const {
  const auto key = [&](std::size_t rank) { return fmt::format("accel/gather_object/{}/{}", round, rank); };
  if (rank_ != 0) {
    store_.set(key(static_cast<std::size_t>(rank_)), bytes_of(text));
    return {};
  }
  std::vector<std::string> keys;
  for (std::size_t rank = 1; rank < members_.size(); ++rank) keys.push_back(key(rank));
  std::vector<std::string> all = {text};
  const Clock::time_point begin = Clock::now();
  try {
    for (const std::vector<std::uint8_t>& bytes : store_.multiGet(keys))
      all.emplace_back(bytes.begin(), bytes.end());
  } catch (const std::exception& error) {
    fail(first_missing(keys), begin, error);
  }
  for (const std::string& of : keys) store_.deleteKey(of);
  return all;
}

int StoreGather::first_missing(const std::vector<std::string>& keys) const {
  try {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (!store_.check({keys[i]})) return static_cast<int>(i) + 1;
    }
  } catch (const std::exception&) {
    // The store does not answer any more.
  }
  return 1;
}

void StoreGather::fail(int rank, Clock::time_point begin, const std::exception& error) const {
  const bool is_late = Clock::now() - begin >= timeout_;
  const std::string reason = std::string(error.what()).substr(0, std::string(error.what()).find('\n'));
  const auto member = [&](int of) { return members_[static_cast<std::size_t>(of)]; };
  throw Error(
      ErrorKind::kFailure,
      fmt::format(
          "rank {} received nothing from rank {}{}: {}", member(rank_), member(rank),
          is_late ? fmt::format(" within {:g} s", std::chrono::duration<double>(timeout_).count()) : "",
          reason))
      .hint(is_late ? "if the rank is slow and does not hang, raise launch.timeout"
                    : "rank 0, which has the store, has probably ended");
}

}  // namespace accel::train
