#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/launch/output/log_file.hpp"

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
  /// Writes what waits, unless abandon() was called.
  ~LogQueue();

  /// Opens an empty file; see LogFile. An empty path gives no file.
  [[nodiscard]] QueuedLog open(const std::filesystem::path& path, const LogRotation& rotation);
  /// Whether so much waits that no more should be read from the workers.
  [[nodiscard]] bool full() const;
  /// Waits for up to `patience` until all is written, and returns whether it is.
  [[nodiscard]] bool drain(std::chrono::milliseconds patience);
  /// Gives up what waits, and returns the files that lack it. The thread and these files stay until the
  /// process ends.
  [[nodiscard]] std::vector<std::filesystem::path> abandon();
  /// What the files have to say, such as that the disk is full: once.
  [[nodiscard]] std::vector<std::string> warnings();

 private:
  friend QueuedLog;
  struct Item {
    std::shared_ptr<LogFile> file;
    std::string text;
    bool closes = false;

    /// The memory that it takes. A worker that writes single bytes fills the queue with items.
    [[nodiscard]] std::size_t bytes() const { return sizeof(Item) + text.size(); }
  };
  struct State;

  void push(Item item);

  std::shared_ptr<State> state_;  ///< The thread has it too, and may outlive this object after abandon().
  std::thread thread_;
};

}  // namespace accel::launch
