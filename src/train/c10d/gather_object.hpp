#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace accel::train {

/// A rank among those that send each other strings through a store. One object is one rank's side of every
/// gather that it takes part in; each function below is one gather, and collective.
class StoreGather {
 public:
  /// Refers to `store`, whose time-out is `timeout`. `members` are the ranks' numbers in the job.
  StoreGather(c10d::Store& store, int rank, std::span<const int> members, std::chrono::milliseconds timeout)
      : store_(store), rank_(rank), members_(members), timeout_(timeout) {}

  /// Every rank gets every rank's `text`, in rank order. Each rank asks the store for each string, and the
  /// store keeps them all. `round` is another number for each gather through this store.
  [[nodiscard]] std::vector<std::string> all_gather(std::int64_t round, const std::string& text) const;

  /// Rank 0 gets every rank's `text`, in rank order, and the other ranks get nothing. Each of these sends one
  /// message and waits for no answer; rank 0 asks for all strings at once, and deletes them from the store.
  /// `round` is another number for each gather through this store.
  [[nodiscard]] std::vector<std::string> gather(std::int64_t round, const std::string& text) const;

 private:
  /// The first rank whose key, of those of ranks 1 and above, is not there. It is rank 1 if the store does
  /// not say, or if all have come meanwhile.
  [[nodiscard]] int first_missing(const std::vector<std::string>& keys) const;
  /// Throws that nothing came from `rank`, for which this one has waited since `begin`.
  [[noreturn]] void fail(int rank, std::chrono::steady_clock::time_point begin,
                         const std::exception& error) const;

  c10d::Store& store_;
  int rank_;
  std::span<const int> members_;
  std::chrono::milliseconds timeout_;
};

}  // namespace accel::train
