#include "train/c10d/run_store.hpp"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "base/error.hpp"
#include "train/c10d/group.hpp"

namespace accel::train {
namespace {

/// Where rank 0 says which run the store belongs to.
constexpr const char* kRunKey = "accel/run";

std::string first_line(const std::exception& error) {
  const std::string what = error.what();
  return what.substr(0, what.find('\n'));
}

std::string address_of(const Rank& rank) { return fmt::format("{}:{}", rank.master_addr, rank.master_port); }

c10::intrusive_ptr<c10d::Store> open_store(const Rank& rank) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(rank.master_port);
  options.isServer = rank.rank == 0;
  // c10d would count the ranks of any run that connect.
  options.waitWorkers = false;
  options.timeout = kJoinTime;
  try {
    return c10::make_intrusive<c10d::TCPStore>(rank.master_addr, options);
  } catch (const std::exception& error) {
    throw Error(ErrorKind::kFailure,
                fmt::format("rank {} of {} cannot reach the rendezvous at {}: {}", rank.rank, rank.world_size,
                            address_of(rank), first_line(error)))
        .hint(rank.rank == 0 ? "is the port in use? leave main_process_port out, and the run gets a free port"
                             : "did rank 0 start, and is its port reachable?");
  }
}

/// Refuses a store that belongs to another run.
void require_own_run(c10d::Store& store, const Rank& rank, const std::string& run) {
  std::string found;
  try {
    const std::vector<std::uint8_t> bytes = store.get(kRunKey);
    found.assign(bytes.begin(), bytes.end());
  } catch (const c10::DistStoreError&) {
    throw Error(ErrorKind::kFailure,
                fmt::format("the store at {} does not say within {} s which run it belongs to, and rank {} "
                            "looks for that of '{}'",
                            address_of(rank), kRunTime.count(), rank.rank, run))
        .hint("does another program use this port?");
  } catch (const std::exception& error) {
    throw Error(ErrorKind::kFailure, fmt::format("rank {} has lost the store at {}: {}", rank.rank,
                                                 address_of(rank), first_line(error)));
  }
  if (found == run) return;
  throw Error(ErrorKind::kFailure, fmt::format("rank {} belongs to the run '{}', and the store at {} to '{}'",
                                               rank.rank, run, address_of(rank), found))
      .hint("do two runs use this port? leave main_process_port out, and each gets a port of its own");
}

}  // namespace

std::string run_from_environment() {
  const char* run = std::getenv("TORCHELASTIC_RUN_ID");
  const char* restart = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return fmt::format("{} (restart {})", run == nullptr ? "" : run, restart == nullptr ? "0" : restart);
}

c10::intrusive_ptr<c10d::Store> join_store(const Rank& rank, const std::string& run) {
  c10::intrusive_ptr<c10d::Store> store = open_store(rank);
  store->setTimeout(kRunTime);
  if (rank.rank == 0) {
    store->set(kRunKey, run);
  } else {
    require_own_run(*store, rank, run);
  }
  c10::intrusive_ptr<c10d::Store> own = c10::make_intrusive<c10d::PrefixStore>("accel/" + run, store);
  const auto key = [](int number) { return fmt::format("joined/{}", number); };
  own->set(key(rank.rank), run);
  if (rank.rank != 0) return own;
  const auto until = std::chrono::steady_clock::now() + kJoinTime;
  for (int other = 1; other < rank.world_size; ++other) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    try {
      own->wait({key(other)}, std::max(left, std::chrono::milliseconds(1)));
    } catch (const std::exception&) {
      throw Error(ErrorKind::kFailure,
                  fmt::format("rank {} of {} has not reached rank 0 at {} within {} s", other,
                              rank.world_size, address_of(rank), kJoinTime.count()))
          .hint("did the rank start, and is this address reachable from its machine?");
    }
  }
  return own;
}

}  // namespace accel::train
