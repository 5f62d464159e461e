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
  kScatter
};

/// What a rank says about the collective that it is in. It stands in front of everything that it passes to
/// the others, who compare it with their own: ranks that disagree get an error, never a wrong number.
struct CollectiveHeader {
  CollectiveKind kind = CollectiveKind::kBarrier;
  std::uint32_t reduction = 0;
  std::int32_t root = 0;
  std::uint32_t reserved = 0;
  std::uint64_t elements = 0;  ///< Of this rank's input.
  char element[24] = {};       ///< The name of the type of one.

  bool operator==(const CollectiveHeader&) const = default;
  void set_element(std::string_view name);
  /// "all-gather of 1024 float32".
  [[nodiscard]] std::string text() const;
};

/// How much memory ranks share: each has `slots` slots of `slot_bytes` (a multiple of 64).
struct SlotGeometry {
  std::size_t slot_bytes = std::size_t{128} << 10;
  std::size_t slots = 4;
};

/// The ranks of one machine passing data to each other, step by step, through shared memory.
///
/// In each step every rank fills one of its slots and posts it, reads the slots that the others posted for
/// that step, and releases them. A rank may post a few steps ahead (as many as it has slots), so that neither
/// filling nor reading waits for the other. All ranks make the same steps, whatever a collective needs of
/// each.
///
/// Every wait ends: with the step, with an Error if the collective takes longer than its time-out, a rank's
/// process has ended, a rank has closed its side or failed itself, or in another thread close() was called.
/// The first failure is recorded in the shared memory, wakes every rank, and is all that comes after.
///
/// For one thread at a time, close() apart.
class Lockstep {
 public:
  [[nodiscard]] static std::size_t shared_bytes(int size, const SlotGeometry& geometry);

  /// `segment` has shared_bytes() and is zero at first; all ranks give the same geometry. `names` says what
  /// messages call each rank; empty: its number.
  Lockstep(SharedSegment segment, PeerWatch peers, int rank, int size, const SlotGeometry& geometry,
           std::vector<std::string> names = {});
  Lockstep(const Lockstep&) = delete;
  Lockstep& operator=(const Lockstep&) = delete;
  /// Closes.
  ~Lockstep();

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] std::size_t slot_bytes() const { return geometry_.slot_bytes; }
  [[nodiscard]] std::size_t slots() const { return geometry_.slots; }

  /// Begins a collective; the time-out is for all of it. Throws at once after a failure.
  void begin(const CollectiveHeader& header, std::chrono::milliseconds timeout);
  /// Whether slot() would not wait.
  [[nodiscard]] bool can_post() const;
  /// This rank's slot of the next step to post: waits until the others have released what was in it.
  [[nodiscard]] std::span<std::byte> slot();
  void post();
  /// What `peer` posted in the step to be read next; waits for it.
  [[nodiscard]] std::span<const std::byte> slot_of(int peer);
  /// Ends the step that was read.
  void release();

  /// Gives up waiting, here and, for this rank, everywhere. From any thread.
  void close();

 private:
  struct Shared;
  struct RankState;
  struct Counter;

  [[nodiscard]] RankState& state(int rank) const;
  [[nodiscard]] std::byte* slot_at(int rank, std::uint32_t step) const;
  [[nodiscard]] const std::string& name(int rank) const { return names_[static_cast<std::size_t>(rank)]; }
  void await(Counter& counter, std::uint32_t target, int peer);
  [[nodiscard]] std::optional<std::string> trouble(bool look_at_processes, int peer) const;
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

  std::uint32_t posted_ = 0;  ///< Steps; they wrap around, so compare differences.
  std::uint32_t released_ = 0;
  CollectiveHeader header_;
  std::uint32_t collectives_ = 0;
  std::chrono::steady_clock::time_point started_;
  std::chrono::milliseconds timeout_{0};
  std::string failure_;
  std::atomic<bool> closed_ = false;
};

}  // namespace accel
