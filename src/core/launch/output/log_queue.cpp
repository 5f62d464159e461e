#include "core/launch/output/log_queue.hpp"

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <mutex>
#include <set>
#include <utility>

#include "base/host/threads.hpp"

namespace accel::launch {
namespace {

constexpr std::size_t kHighWater = 64 << 20;

}  // namespace

struct LogQueue::State {
  void write_items();

  std::mutex mutex;  ///< Guards all members.
  std::condition_variable changed;
  std::deque<Item> items;  ///< The first one is being written.
  std::size_t bytes = 0;   ///< The memory of the items.
  std::vector<std::string> warnings;
  bool lacks_memory = false;  ///< A log ended for want of memory, and warnings() has not said so yet.
  bool ends = false;          ///< The thread ends when all is written.
  bool is_abandoned = false;  ///< The thread writes nothing more, and keeps the items.
};

void QueuedLog::write(std::string_view chunk) {
  if (file_ != nullptr && !chunk.empty()) queue_->push({file_, std::string(chunk)});
}

void QueuedLog::close() {
  if (file_ != nullptr) queue_->push({std::move(file_), "", true});
}

LogQueue::LogQueue()
    : state_(std::make_shared<State>()),
      thread_(thread_without_signals([state = state_] { state->write_items(); })) {}

LogQueue::~LogQueue() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->ends = true;
  }
  state_->changed.notify_all();
  if (thread_.joinable()) thread_.join();
}

QueuedLog LogQueue::open(const std::filesystem::path& path, const LogRotation& rotation) {
  if (path.empty()) return {};
  // The thread alone writes the file, and it holds the state.
  return {*this, std::make_shared<LogFile>(path, rotation, [state = state_.get()](std::string text) {
            const std::lock_guard lock(state->mutex);
            state->warnings.push_back(std::move(text));
          })};
}

bool LogQueue::full() const {
  const std::lock_guard lock(state_->mutex);
  return state_->bytes > kHighWater;
}

bool LogQueue::drain(std::chrono::milliseconds patience) {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_for(lock, patience, [this] { return state_->items.empty(); });
}

std::vector<std::filesystem::path> LogQueue::abandon() {
  const std::lock_guard lock(state_->mutex);
  if (state_->items.empty()) return {};
  std::set<std::filesystem::path> incomplete;
  for (const Item& item : state_->items) {
    // A file that only waits to be closed is complete, but to close one that is written may send it.
    if (item.closes && &item != &state_->items.front()) continue;
    incomplete.insert(item.file->path());
  }
  state_->is_abandoned = true;
  state_->changed.notify_all();
  thread_.detach();
  return {incomplete.begin(), incomplete.end()};
}

std::vector<std::string> LogQueue::warnings() {
  const std::lock_guard lock(state_->mutex);
  std::vector<std::string> warnings = std::exchange(state_->warnings, {});
  if (std::exchange(state_->lacks_memory, false))
    warnings.emplace_back("there was no memory to write the log of a rank, which ends early");
  return warnings;
}

void LogQueue::push(Item item) {
  {
    const std::lock_guard lock(state_->mutex);
    const std::size_t bytes = item.bytes();
    state_->items.push_back(std::move(item));
    state_->bytes += bytes;
  }
  state_->changed.notify_all();
}

void LogQueue::State::write_items() {
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [this] { return ends || is_abandoned || !items.empty(); });
    // To close the files may take as long as to write them. The end of the process does it.
    while (is_abandoned) changed.wait(lock);
    if (items.empty()) return;
    Item& item = items.front();
    bool lacks = false;
    lock.unlock();
    try {
      item.closes ? item.file->close() : item.file->write(item.text);
    } catch (const std::exception&) {
      // There is no memory for the name of a rotated file, or for a warning.
      item.file->close();
      lacks = true;
    }
    lock.lock();
    lacks_memory |= lacks;
    bytes -= item.bytes();
    items.pop_front();
    changed.notify_all();
  }
}

}  // namespace accel::launch
