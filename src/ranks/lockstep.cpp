#include "ranks/lockstep.hpp"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/seconds.hpp"

namespace accel {
namespace {

using Clock = std::chrono::steady_clock;

/// A cache line. What different ranks write lies in different lines.
constexpr std::size_t kLine = 64;
constexpr std::size_t kPage = 4096;
/// The time between two looks at the other ranks' processes while this rank sleeps.
constexpr std::chrono::milliseconds kLook{50};
/// A rank that has not read the clock for so long was stopped, as by Ctrl-Z, or was kept from running.
constexpr std::chrono::seconds kStopped{1};
/// A longer time-out would overflow the clock's arithmetic.
constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);
/// How often a rank looks at a counter before it sleeps. Ranks may outnumber cores, and a rank that spins
/// holds up another one.
constexpr int kSpins = 200;

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(CollectiveHeader) <= kLine);

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

bool reached(std::uint32_t count, std::uint32_t target) {
  return static_cast<std::int32_t>(count - target) >= 0;
}

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t seen, std::chrono::nanoseconds most) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(most);
  const timespec timeout = {.tv_sec = seconds.count(), .tv_nsec = (most - seconds).count()};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

void futex_wake(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

std::string_view name_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllGather:
      return "all-gather";
    case CollectiveKind::kReduceScatter:
      return "reduce-scatter";
    case CollectiveKind::kAllReduce:
      return "all-reduce";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kBarrier:
      return "barrier";
    case CollectiveKind::kScatter:
      return "scatter";
    case CollectiveKind::kAllToAll:
      return "all-to-all";
  }
  return "unknown collective";
}

}  // namespace

// The shared memory has a Shared, a RankState for each rank, and from the next page on the slots, rank by
// rank. A slot is a line with the header, and slot_bytes. Zeros are the initial state of everything.

struct Lockstep::Counter {
  std::atomic<std::uint32_t> value;
  std::atomic<std::uint32_t> sleepers;
};

struct alignas(kLine) Lockstep::RankState {
  Counter posted;
  alignas(kLine) Counter released;
  alignas(kLine) std::atomic<std::uint32_t> collectives;  ///< The number of collectives begun.
  std::atomic<std::uint32_t> closed;
};

struct alignas(kLine) Lockstep::Shared {
  enum State : std::uint32_t { kNone, kBeingWritten, kWritten };
  std::atomic<std::uint32_t> failure_state;
  char failure[kLine * 8 - 4];
};

void CollectiveHeader::set_element(std::string_view name) {
  std::memset(element, 0, sizeof element);
  std::memcpy(element, name.data(), std::min(name.size(), sizeof element - 1));
}

std::string CollectiveHeader::text() const {
  if (kind == CollectiveKind::kBarrier) return std::string(name_of(kind));
  std::string text = fmt::format("{} of {} {}", name_of(kind), elements, element);
  if (kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kScatter)
    text += fmt::format(" from rank {}", root);
  return text;
}

std::size_t Lockstep::shared_bytes(int size, const SlotGeometry& geometry) {
  const auto ranks = static_cast<std::size_t>(size);
  return round_up(sizeof(Shared) + ranks * sizeof(RankState), kPage) +
         ranks * geometry.slots * (kLine + geometry.slot_bytes);
}

Lockstep::Lockstep(SharedSegment segment, PeerWatch peers, int rank, int size, const SlotGeometry& geometry,
                   std::vector<std::string> names)
    : segment_(std::move(segment)),
      peers_(std::move(peers)),
      rank_(rank),
      size_(size),
      geometry_(geometry),
      names_(std::move(names)) {
  if (geometry.slot_bytes % kLine != 0 || geometry.slot_bytes / kLine < static_cast<std::size_t>(size) ||
      geometry.slots == 0 || segment_.bytes().size() < shared_bytes(size, geometry)) {
    throw Error(ErrorKind::kFailure, fmt::format("{} slots of {} bytes do not suit {} ranks", geometry.slots,
                                                 geometry.slot_bytes, size));
  }
  for (int i = static_cast<int>(names_.size()); i < size; ++i) names_.push_back(fmt::format("rank {}", i));
  shared_ = reinterpret_cast<Shared*>(segment_.bytes().data());
}

Lockstep::~Lockstep() { close(); }

Lockstep::RankState& Lockstep::state(int rank) const {
  return reinterpret_cast<RankState*>(shared_ + 1)[rank];
}

std::byte* Lockstep::slot_at(int rank, std::uint32_t step) const {
  const std::size_t first =
      round_up(sizeof(Shared) + static_cast<std::size_t>(size_) * sizeof(RankState), kPage);
  const std::size_t index = static_cast<std::size_t>(rank) * geometry_.slots + step % geometry_.slots;
  return segment_.bytes().data() + first + index * (kLine + geometry_.slot_bytes);
}

void Lockstep::begin(const CollectiveHeader& header, std::chrono::milliseconds timeout) {
  header_ = header;
  started_ = looked_at_ = Clock::now();
  timeout_ = std::min(timeout, kLongest);
  deadline_ = started_ + timeout_;
  ++collectives_;
  if (!failure_.empty()) {
    throw Error(ErrorKind::kFailure,
                fmt::format("{} (collective {}): not started, because an earlier one failed: {}",
                            header_.text(), collectives_, failure_));
  }
  state(rank_).collectives.store(collectives_, std::memory_order_relaxed);
  // A collective needs all ranks, so it cannot complete after one has given up.
  if (const std::optional<std::string> cause = failure_cause(false, rank_)) fail(*cause);
}

bool Lockstep::can_post() const {
  const auto target = posted_ - static_cast<std::uint32_t>(geometry_.slots) + 1;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_ && !reached(state(peer).released.value.load(std::memory_order_acquire), target))
      return false;
  }
  return true;
}

std::span<std::byte> Lockstep::slot() {
  const auto target = posted_ - static_cast<std::uint32_t>(geometry_.slots) + 1;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) await(state(peer).released, target, peer);
  }
  return {slot_at(rank_, posted_) + kLine, geometry_.slot_bytes};
}

void Lockstep::post() {
  std::memcpy(slot_at(rank_, posted_), &header_, sizeof header_);
  publish(state(rank_).posted, ++posted_);
}

std::span<const std::byte> Lockstep::slot_of(int peer) {
  const std::byte* slot = slot_at(peer, released_);
  if (peer != rank_) {
    await(state(peer).posted, released_ + 1, peer);
    check_header(peer, slot);
  }
  return {slot + kLine, geometry_.slot_bytes};
}

void Lockstep::release() { publish(state(rank_).released, ++released_); }

void Lockstep::publish(Counter& counter, std::uint32_t value) {
  // Sequentially consistent with await(): either await() sees the value, or this sees the sleeper.
  counter.value.store(value, std::memory_order_seq_cst);
  if (counter.sleepers.load(std::memory_order_seq_cst) != 0) futex_wake(counter.value);
}

void Lockstep::await(Counter& counter, std::uint32_t target, int peer) {
  for (int i = 0; i < kSpins; ++i) {
    if (reached(counter.value.load(std::memory_order_acquire), target)) return;
    pause_briefly();
  }
  counter.sleepers.fetch_add(1, std::memory_order_seq_cst);
  std::optional<std::string> cause;
  Clock::time_point next_look = Clock::now() + kLook;
  for (;;) {
    // Trouble is read before the counter. A rank that ends after it has done its part has counted up before,
    // so the counter shows that its end is not a failure.
    const Clock::time_point now = read_clock();
    const bool look = now >= next_look;
    if (look) next_look = now + kLook;
    cause = failure_cause(look, peer);
    const std::uint32_t seen = counter.value.load(std::memory_order_seq_cst);
    if (reached(seen, target)) {
      cause.reset();
      break;
    }
    if (cause) break;
    futex_wait(counter.value, seen, std::min<std::chrono::nanoseconds>(kLook, deadline_ - now));
  }
  counter.sleepers.fetch_sub(1, std::memory_order_relaxed);
  if (cause) fail(*cause);
}

Clock::time_point Lockstep::read_clock() {
  const Clock::time_point now = Clock::now();
  if (now - looked_at_ > kStopped) deadline_ += now - looked_at_;
  looked_at_ = now;
  return now;
}

std::optional<std::string> Lockstep::failure_cause(bool checks_processes, int peer) const {
  if (closed_.load(std::memory_order_relaxed)) return fmt::format("{} closed the group", name(rank_));
  if (shared_->failure_state.load(std::memory_order_acquire) == Shared::kWritten)
    return std::string(shared_->failure, ::strnlen(shared_->failure, sizeof shared_->failure));
  if (checks_processes) {
    if (const std::optional<int> ended = peers_.ended())
      return fmt::format("{} (process {}) ended", name(*ended), peers_.pid(*ended));
  }
  for (int other = 0; other < size_; ++other) {
    if (other != rank_ && state(other).closed.load(std::memory_order_acquire) != 0)
      return fmt::format("{} closed the group", name(other));
  }
  if (looked_at_ >= deadline_) {
    const std::uint32_t theirs = state(peer).collectives.load(std::memory_order_relaxed);
    return fmt::format("{} did not come within {:g} s: it is at collective {}, this is {} at {}", name(peer),
                       std::chrono::duration<double>(timeout_).count(), theirs, name(rank_), collectives_);
  }
  return std::nullopt;
}

void Lockstep::check_header(int peer, const std::byte* slot) {
  CollectiveHeader theirs;
  std::memcpy(&theirs, slot, sizeof theirs);
  if (theirs == header_) return;
  theirs.element[sizeof theirs.element - 1] = '\0';
  const bool reductions_alone = theirs.text() == header_.text();
  fail(fmt::format("the ranks disagree: collective {} is {} on {}, {} on {}{}", collectives_, header_.text(),
                   name(rank_), theirs.text(), name(peer),
                   reductions_alone ? ", with different reductions" : ""));
}

void Lockstep::fail(const std::string& cause) {
  failure_ = cause;
  std::uint32_t none = Shared::kNone;
  if (shared_->failure_state.compare_exchange_strong(none, Shared::kBeingWritten)) {
    std::memcpy(shared_->failure, cause.data(), std::min(cause.size(), sizeof shared_->failure));
    shared_->failure_state.store(Shared::kWritten, std::memory_order_release);
  }
  wake_all();
  throw_failure(cause);
}

void Lockstep::throw_failure(const std::string& cause) const {
  throw Error(ErrorKind::kFailure, fmt::format("{} (collective {}) failed after {:.1f} s: {}", header_.text(),
                                               collectives_, seconds_since(started_), cause));
}

void Lockstep::wake_all() const {
  for (int rank = 0; rank < size_; ++rank) {
    futex_wake(state(rank).posted.value);
    futex_wake(state(rank).released.value);
  }
}

void Lockstep::close() {
  if (closed_.exchange(true)) return;
  state(rank_).closed.store(1, std::memory_order_release);
  wake_all();
}

}  // namespace accel
