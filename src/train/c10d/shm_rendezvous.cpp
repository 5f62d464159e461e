#include "train/c10d/shm_rendezvous.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"

namespace accel::train {
namespace {

/// The first character of what a rank says when it cannot take part.
constexpr char kRefusal = '!';

/// Returns every rank's `text` in rank order. Throws if one of them is a refusal.
std::vector<std::string> all_gather_object(c10d::Store& store, const char* round, int rank, int size,
                                           const std::string& text) {
  const auto key = [&](int of) { return fmt::format("shm/{}/{}", round, of); };
  store.set(key(rank), std::vector<std::uint8_t>(text.begin(), text.end()));
  std::vector<std::string> all;
  for (int other = 0; other < size; ++other) {
    const std::vector<std::uint8_t> bytes = store.get(key(other));
    all.emplace_back(bytes.begin(), bytes.end());
  }
  for (int other = 0; other < size; ++other) {
    const std::string& message = all[static_cast<std::size_t>(other)];
    if (message.starts_with(kRefusal)) {
      throw Error(ErrorKind::kFailure, fmt::format("rank {} cannot share memory with the others: {}", other,
                                                   std::string_view(message).substr(1)))
          .hint("use backend: gloo");
    }
  }
  return all;
}

/// Returns what `say` returns, or a refusal with the message of the Error that it throws.
template <class Say>
std::string message_of(Say say) {
  try {
    return say();
  } catch (const Error& error) {
    return kRefusal + error.message();
  }
}

}  // namespace

ShmRendezvous rendezvous_on_this_machine(c10d::Store& store, int rank, int size, std::size_t bytes) {
  std::optional<SharedSegment> segment;
  // First round: the identity of every rank's process, and from rank 0 the address of the memory.
  const std::vector<std::string> identities =
      all_gather_object(store, "identity", rank, size, message_of([&]() -> std::string {
                          std::string text = ProcessIdentity::self().text();
                          if (rank == 0)
                            text += '\n' + segment.emplace(SharedSegment::create(bytes)).address();
                          return text;
                        }));
  PeerWatch peers;
  // Second round: whether every rank has found the others. The address stays open until then.
  all_gather_object(store, "found", rank, size, message_of([&]() -> std::string {
                      std::vector<ProcessIdentity> processes;
                      for (const std::string& identity : identities)
                        processes.push_back(ProcessIdentity::from(identity));
                      peers = PeerWatch(processes, rank);
                      const std::string& first = identities.front();
                      if (rank != 0) segment = SharedSegment::open(first.substr(first.find('\n') + 1));
                      return "";
                    }));
  segment->close_address();
  return {std::move(*segment), std::move(peers)};
}

}  // namespace accel::train
