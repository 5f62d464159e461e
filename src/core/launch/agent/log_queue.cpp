#include "core/launch/agent/log_queue.hpp"

#include <utility>

#include "base/host/threads.hpp"

namespace accel::launch {

void QueuedLog::write(std::string_view chunk) {
  if (file_ != nullptr && !chunk.empty()) queue_->push({file_, std::string(chunk)});
}

void QueuedLog::close() {
  if (file_ != nullptr) queue_->push({std::move(file_), "", true});
}

LogQueue::LogQueue() : thread_(thread_without_signals([this] { write_items(); })) {}

LogQueue::~LogQueue() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

QueuedLog LogQueue::open(const std::filesystem::path& path, const LogRotation& rotation) {
  if (path.empty()) return {};
  return {*this, std::make_shared<LogFile>(path, rotation, [this](std::string text) {
            const std::lock_guard lock(mutex_);
            warnings_.push_back(std::move(text));
          })};
}

bool LogQueue::full() const {
  const std::lock_guard lock(mutex_);
  return bytes_ > kHighWater;
}

void LogQueue::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return items_.empty(); });
}

std::vector<std::string> LogQueue::warnings() {
  const std::lock_guard lock(mutex_);
  return std::exchange(warnings_, {});
}

void LogQueue::push(Item item) {
  {
    const std::lock_guard lock(mutex_);
    bytes_ += item.text.size();
    items_.push_back(std::move(item));
  }
  changed_.notify_all();
}

void LogQueue::write_items() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !items_.empty(); });
    if (items_.empty()) return;
    Item& item = items_.front();
    lock.unlock();
    item.closes ? item.file->close() : item.file->write(item.text);
    lock.lock();
    bytes_ -= item.text.size();
    items_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace accel::launch
