#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ranks/peers.hpp"
#include "ranks/shared_segment.hpp"

namespace accel {

enum class CollectiveKind : std::uint32_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kBarrier,
  kScatter,
  kAllToAll
};

/// Describes the collective that a rank is in. Everything that the rank posts begins with this header, and
/// the other ranks compare it with their own. Ranks that disagree get an error, never a wrong number.
struct CollectiveHeader {
  CollectiveKind kind = CollectiveKind::kBarrier;
  std::uint32_t reduction = 0;
  std::int32_t root = 0;
  std::uint32_t reserved = 0;
  std::uint64_t elements = 0;  ///< The number of elements of this rank's input.
  char element[24] = {};       ///< The name of the elements' type.

  bool operator==(const CollectiveHeader&) const = default;
  void set_element(std::string_view name);
  /// Returns a text for messages, such as "all-gather of 1024 float32".
  [[nodiscard]] std::string text() const;
};

/// How much memory ranks share: each has `slots` slots of `slot_bytes` (a multiple of 64).
struct SlotGeometry {
  std::size_t slot_bytes = std::size_t{128} << 10;
  std::size_t slots = 4;
};

/// Passes data between the ranks of one machine, step by step, through shared memory.
///
/// In each step every rank fills one of its slots and posts it, reads the slots that the others posted for
/// that step, and releases them. A rank may post a few steps ahead (as many as it has slots), so that neither
/// filling nor reading waits for the other. All ranks take the same steps, whatever a collective needs of
/// each.
///
/// Every wait ends, either with the step or with an Error. An Error comes if the collective takes longer than
/// its time-out, not counting time in which this process was stopped, if a rank's process has ended, if a
/// rank has closed its side or has failed, and if another thread calls close(). The first failure is recorded
/// in the shared memory and wakes every rank. All later collectives fail with it.
///
/// One thread at a time uses it, except for close().
class Lockstep {
 public:
  /// Returns the bytes of shared memory that `size` ranks need.
  [[nodiscard]] static std::size_t shared_bytes(int size, const SlotGeometry& geometry);

  /// `segment` has at least shared_bytes() bytes, which are zero. All ranks pass the same geometry. `names`
  /// are the names of the ranks in messages; if it is empty, messages have their numbers.
  Lockstep(SharedSegment segment, PeerWatch peers, int rank, int size, const SlotGeometry& geometry,
           std::vector<std::string> names = {});
  Lockstep(const Lockstep&) = delete;
  Lockstep& operator=(const Lockstep&) = delete;
  /// Calls close().
  ~Lockstep();

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] std::size_t slot_bytes() const { return geometry_.slot_bytes; }
  [[nodiscard]] std::size_t slots() const { return geometry_.slots; }

  /// Begins a collective. `timeout` limits all of it. Throws at once after a failure.
  void begin(const CollectiveHeader& header, std::chrono::milliseconds timeout);
  /// Whether slot() would return without waiting.
  [[nodiscard]] bool can_post() const;
  /// Returns this rank's slot for the next step to post. Waits until the others have released what was in it.
  [[nodiscard]] std::span<std::byte> slot();
  /// Posts the slot to the other ranks.
  void post();
  /// Returns what `peer` posted in the step to be read next. Waits for it.
  [[nodiscard]] std::span<const std::byte> slot_of(int peer);
  /// Ends the step that was read, so that its slots can be filled again.
  void release();

  /// Ends all waits of this rank, and the other ranks' waits for it. May be called from any thread.
  void close();

 private:
  struct Shared;
  struct RankState;
  struct Counter;

  [[nodiscard]] RankState& state(int rank) const;
  [[nodiscard]] std::byte* slot_at(int rank, std::uint32_t step) const;
  [[nodiscard]] const std::string& name(int rank) const { return names_[static_cast<std::size_t>(rank)]; }
  void await(Counter& counter, std::uint32_t target, int peer);
  /// Returns the time. If this rank was stopped since it last read the clock, that time does not count for
  /// the time-out.
  std::chrono::steady_clock::time_point read_clock();
  [[nodiscard]] std::optional<std::string> failure_cause(bool checks_processes, int peer) const;
  void check_header(int peer, const std::byte* slot);
  void publish(Counter& counter, std::uint32_t value);
  [[noreturn]] void fail(const std::string& cause);
  [[noreturn]] void throw_failure(const std::string& cause) const;
  void wake_all() const;

  SharedSegment segment_;
  PeerWatch peers_;
  int rank_;
  int size_;
  SlotGeometry geometry_;
  std::vector<std::string> names_;
  Shared* shared_ = nullptr;

  std::uint32_t posted_ = 0;  ///< Steps posted. The number wraps around, so compare differences.
  std::uint32_t released_ = 0;
  CollectiveHeader header_;
  std::uint32_t collectives_ = 0;
  std::chrono::steady_clock::time_point started_;
  std::chrono::steady_clock::time_point looked_at_;  ///< When this rank last read the clock.
  std::chrono::steady_clock::time_point deadline_;
  std::chrono::milliseconds timeout_{0};
  std::string failure_;
  std::atomic<bool> closed_ = false;
};

}  // namespace accel
