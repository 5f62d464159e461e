#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/launch/agent/log_file.hpp"

namespace accel::launch {

class LogQueue;

/// A log file that a LogQueue writes.
class QueuedLog {
 public:
  /// No file.
  QueuedLog() = default;

  void write(std::string_view chunk);
  void close();

 private:
  friend LogQueue;
  QueuedLog(LogQueue& queue, std::shared_ptr<LogFile> file) : queue_(&queue), file_(std::move(file)) {}

  LogQueue* queue_ = nullptr;
  std::shared_ptr<LogFile> file_;
};

/// Writes log files on a thread of its own. The file system of a cluster may stall for minutes, and meanwhile
/// the launcher must serve signals, the other machines and the terminal. All calls are for one thread.
class LogQueue {
 public:
  LogQueue();
  LogQueue(const LogQueue&) = delete;
  LogQueue& operator=(const LogQueue&) = delete;
  /// Writes what waits.
  ~LogQueue();

  /// Opens an empty file; see LogFile. An empty path gives no file.
  [[nodiscard]] QueuedLog open(const std::filesystem::path& path, const LogRotation& rotation);
  /// Whether so much waits that no more should be read from the workers.
  [[nodiscard]] bool full() const;
  /// Returns when all is written.
  void drain();
  /// What the files have to say, such as that the disk is full: once.
  [[nodiscard]] std::vector<std::string> warnings();

 private:
  friend QueuedLog;
  struct Item {
    std::shared_ptr<LogFile> file;
    std::string text;
    bool closes = false;
  };
  static constexpr std::size_t kHighWater = 64 << 20;

  void push(Item item);
  void write_items();

  mutable std::mutex mutex_;  ///< Guards what follows, up to the thread.
  std::condition_variable changed_;
  std::deque<Item> items_;  ///< The first one is being written.
  std::size_t bytes_ = 0;
  std::vector<std::string> warnings_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace accel::launch
