#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "base/host/threads.hpp"

namespace accel {

/// A queue that a thread of its own fills with the results of `read`, one call after the other, up to `most`
/// of them ahead of their use. One other thread takes them.
template <class Value>
class ReadAhead {
 public:
  ReadAhead(std::size_t most, std::function<Value()> read)
      : most_(most), read_(std::move(read)), thread_(thread_without_signals([this] { fill(); })) {}
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;
  /// Waits for the call of `read` that is under way. What has not been taken is lost.
  ~ReadAhead() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  /// Returns the next result, in the order of the calls. If a call has thrown, its exception comes in the
  /// place of its result, and of all after it.
  [[nodiscard]] Value take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !values_.empty() || error_ != nullptr; });
    if (values_.empty()) std::rethrow_exception(error_);
    Value value = std::move(values_.front());
    values_.pop_front();
    changed_.notify_all();
    return value;
  }

 private:
  void fill() {
    try {
      while (has_room()) {
        Value value = read_();
        const std::lock_guard lock(mutex_);
        values_.push_back(std::move(value));
        changed_.notify_all();
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      error_ = std::current_exception();
      changed_.notify_all();
    }
  }

  /// Waits for room in the queue. False if no more results are wanted.
  bool has_room() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_over_ || values_.size() < most_; });
    return !is_over_;
  }

  std::size_t most_;
  std::function<Value()> read_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Value> values_;
  std::exception_ptr error_;
  bool is_over_ = false;
  std::thread thread_;  // The last member: it uses the others.
};

}  // namespace accel
