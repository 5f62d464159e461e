#include "base/files/flight_record.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <memory>
#include <utility>

#include "base/files/fd.hpp"
#include "base/host/host_name.hpp"

namespace accel {
namespace {

constexpr std::array<char, 8> kFlightMagic = {'a', 'c', 'c', 'f', 'l', 't', '0', '3'};
constexpr std::size_t kEntries = 256;

/// The file: a header and a ring of entries. All numbers are those of the machine that writes it.
struct Entry {
  std::atomic<std::uint64_t> number;  ///< 0 while the entry is written.
  std::atomic<std::int64_t> begun_ns;
  std::atomic<std::int64_t> waited_ns;
  std::atomic<std::int64_t> ended_ns;
  std::uint64_t in_group;
  std::uint64_t bytes;
  std::int32_t first;
  std::int32_t stride;
  std::int32_t count;
  std::atomic<std::uint8_t> op;
  std::atomic<bool> is_enqueued;
  char group[26];
  char unit[96];
};

struct FlightFile {
  std::array<char, 8> magic;
  std::int32_t rank;
  std::atomic<std::int32_t> pid;
  char host[64];
  std::atomic<std::int64_t> step;
  std::atomic<std::int64_t> done;
  std::atomic<std::int64_t> checkpoint;
  std::atomic<std::uint64_t> last;  ///< The number of the newest entry.
  std::atomic<std::uint64_t> progress;
  std::array<Entry, kEntries> entries;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// Copies the end of `text`: the end of a path tells more than its beginning.
template <std::size_t N>
void put(char (&to)[N], std::string_view text) {
  if (text.size() >= N) text.remove_prefix(text.size() - (N - 1));
  if (!text.empty()) std::memcpy(to, text.data(), text.size());
  to[text.size()] = '\0';
}

template <std::size_t N>
std::string get(const char (&from)[N]) {
  return {from, ::strnlen(from, N)};
}

Fd opened(const char* path, int flags) {
  // O_NONBLOCK: somebody may have put a FIFO there, which has no size.
  return Fd(::open(path, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
}

/// Copies the first `bytes` of a record; false if the file is not one. A map of a file that becomes shorter
/// would end the reader with SIGBUS.
bool copy(const Fd& fd, FlightFile& to, std::size_t bytes) {
  return fd && ::pread(fd.get(), static_cast<void*>(&to), bytes, 0) == static_cast<ssize_t>(bytes) &&
         to.magic == kFlightMagic;
}

/// A file in memory, to be written; null if it cannot be had.
FlightFile* map(const char* path) {
  const Fd fd = opened(path, O_RDWR);
  if (!fd || ::lseek(fd.get(), 0, SEEK_END) < static_cast<off_t>(sizeof(FlightFile))) return nullptr;
  void* memory = ::mmap(nullptr, sizeof(FlightFile), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* file = static_cast<FlightFile*>(memory);
  if (file->magic == kFlightMagic) return file;
  ::munmap(memory, sizeof(FlightFile));
  return nullptr;
}

/// An entry, unless it was overwritten between its copy and a `later` copy.
std::optional<FlightEvent> event_of(const Entry& entry, const Entry& later) {
  FlightEvent event;
  event.number = entry.number;
  if (event.number == 0 || later.number != event.number) return std::nullopt;
  event.op =
      static_cast<FlightOp>(std::min<std::uint8_t>(entry.op, static_cast<std::uint8_t>(FlightOp::kAllToAll)));
  event.begun_ns = entry.begun_ns;
  event.waited_ns = entry.waited_ns;
  event.ended_ns = entry.ended_ns;
  event.in_group = entry.in_group;
  event.bytes = entry.bytes;
  event.group = {get(entry.group), entry.first, entry.stride, entry.count, entry.in_group, entry.is_enqueued};
  event.unit = get(entry.unit);
  return event;
}

}  // namespace

std::int64_t nanoseconds_since_1970() {
  struct timespec now {};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

std::string_view text_of(FlightOp op) {
  switch (op) {
    case FlightOp::kForward:
      return "forward";
    case FlightOp::kAllGather:
      return "all-gather";
    case FlightOp::kReduceScatter:
      return "reduce-scatter";
    case FlightOp::kAllReduce:
      return "all-reduce";
    case FlightOp::kBroadcast:
      return "broadcast";
    case FlightOp::kScatter:
      return "scatter";
    case FlightOp::kExchange:
      return "exchange of texts";
    case FlightOp::kHostWork:
      return "work";
    case FlightOp::kHostSync:
      return "host sync";
    case FlightOp::kBackward:
      return "backward";
    case FlightOp::kRecompute:
      return "recomputation";
    case FlightOp::kOptimizer:
      return "the optimizer";
    case FlightOp::kAllToAll:
      return "all-to-all";
  }
  return "";
}

void FlightGroup::set_members(const std::vector<int>& ranks) {
  if (ranks.empty()) return;
  first = ranks.front();
  stride = ranks.size() > 1 ? ranks[1] - ranks[0] : 1;
  count = static_cast<std::int32_t>(ranks.size());
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    if (ranks[i] - ranks[i - 1] != stride) count = 0;
  }
}

bool create_flight_record(const std::filesystem::path& path, int rank) {
  const Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  // With its blocks allocated, no write into the mapped memory can fail.
  if (!fd || ::posix_fallocate(fd.get(), 0, sizeof(FlightFile)) != 0) {
    ::unlink(path.c_str());
    return false;
  }
  void* memory = ::mmap(nullptr, sizeof(FlightFile), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return false;
  auto* file = static_cast<FlightFile*>(memory);
  file->rank = rank;
  put(file->host, host_name());
  file->magic = kFlightMagic;
  ::munmap(memory, sizeof(FlightFile));
  return true;
}

void set_flight_pid(const std::filesystem::path& path, pid_t pid) {
  if (FlightFile* file = map(path.c_str())) {
    file->pid = pid;
    ::munmap(file, sizeof(FlightFile));
  }
}

std::optional<FlightRecord> read_flight_record(const std::filesystem::path& path) {
  const Fd fd = opened(path.c_str(), O_RDONLY);
  const auto file = std::make_unique<FlightFile>();
  const auto later = std::make_unique<FlightFile>();
  if (!copy(fd, *file, sizeof(FlightFile)) || !copy(fd, *later, sizeof(FlightFile))) return std::nullopt;
  FlightRecord record;
  record.rank = file->rank;
  record.pid = file->pid;
  record.host = get(file->host);
  record.step = file->step;
  record.progress = file->progress;
  for (std::size_t i = 0; i < kEntries; ++i) {
    if (auto event = event_of(file->entries[i], later->entries[i]))
      record.events.push_back(std::move(*event));
  }
  std::sort(record.events.begin(), record.events.end(),
            [](const FlightEvent& a, const FlightEvent& b) { return a.number < b.number; });
  return record;
}

std::optional<FlightProgress> read_flight_progress(const std::filesystem::path& path) {
  const auto file = std::make_unique<FlightFile>();
  if (!copy(opened(path.c_str(), O_RDONLY), *file, offsetof(FlightFile, entries))) return std::nullopt;
  return FlightProgress{file->step, file->progress, file->done, file->checkpoint};
}

bool is_in_host_work(const FlightRecord& record) {
  return std::any_of(record.events.begin(), record.events.end(), [](const FlightEvent& event) {
    return event.op == FlightOp::kHostWork && event.ended_ns == 0;
  });
}

namespace flight {
namespace {

/// The record, which lives as long as the process.
FlightFile* own = nullptr;
thread_local std::string_view label;

Entry* entry_of(std::uint64_t number) {
  if (own == nullptr || number == 0) return nullptr;
  Entry& entry = own->entries[number % kEntries];
  return entry.number.load(std::memory_order_relaxed) == number ? &entry : nullptr;
}

}  // namespace

void open() {
  const char* path = std::getenv(kFlightVariable);
  if (own == nullptr && path != nullptr) own = map(path);
}

void set_step(std::int64_t step) {
  if (own == nullptr) return;
  own->step = step;
  own->progress.fetch_add(1, std::memory_order_relaxed);
}

void set_done(std::int64_t step) {
  if (own != nullptr) own->done = step;
}

void set_checkpoint(std::int64_t step) {
  if (own != nullptr) own->checkpoint = step;
}

std::uint64_t begin(FlightOp op, std::size_t bytes, FlightGroup* group) {
  if (own == nullptr) return 0;
  const std::uint64_t number = own->last.fetch_add(1, std::memory_order_relaxed) + 1;
  Entry& entry = own->entries[number % kEntries];
  entry.number.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  entry.op = static_cast<std::uint8_t>(op);
  // Texts go through the store, on the host.
  entry.is_enqueued = group != nullptr && group->enqueues && op != FlightOp::kExchange;
  entry.begun_ns = nanoseconds_since_1970();
  entry.waited_ns = 0;
  entry.ended_ns = 0;
  entry.bytes = bytes;
  entry.in_group = group == nullptr ? 0 : ++group->issued;
  entry.first = group == nullptr ? 0 : group->first;
  entry.stride = group == nullptr ? 0 : group->stride;
  entry.count = group == nullptr ? 0 : group->count;
  put(entry.group, group == nullptr ? std::string_view() : std::string_view(group->name));
  put(entry.unit, label);
  entry.number.store(number, std::memory_order_release);
  own->progress.fetch_add(1, std::memory_order_relaxed);
  return number;
}

void wait(std::uint64_t number) {
  if (Entry* entry = entry_of(number)) entry->waited_ns = nanoseconds_since_1970();
}

void end(std::uint64_t number) {
  if (Entry* entry = entry_of(number); entry != nullptr && !entry->is_enqueued)
    entry->ended_ns = nanoseconds_since_1970();
  if (own != nullptr) own->progress.fetch_add(1, std::memory_order_relaxed);
}

HostSync::HostSync(bool waits)
    : number_(waits ? begin(FlightOp::kHostSync) : 0), exceptions_(std::uncaught_exceptions()) {}

HostSync::~HostSync() {
  if (number_ == 0) return;
  const Entry* const sync = entry_of(number_);
  if (sync != nullptr && std::uncaught_exceptions() == exceptions_) {
    const std::int64_t begun_ns = sync->begun_ns;
    for (Entry& entry : own->entries) {
      if (entry.number == 0 || !entry.is_enqueued || entry.ended_ns != 0) continue;
      if (entry.waited_ns != 0 && entry.waited_ns <= begun_ns) entry.ended_ns = nanoseconds_since_1970();
    }
  }
  end(number_);
}

Label::Label(std::string_view text) : before_(std::exchange(label, text)) {}
Label::~Label() { label = before_; }

}  // namespace flight

}  // namespace accel
