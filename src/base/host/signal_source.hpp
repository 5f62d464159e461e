#pragma once

#include <chrono>
#include <csignal>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "base/exit_code.hpp"

namespace accel {

/// SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 of a process that starts others, from its first moment to its
/// last. They are blocked, so that one which comes between two phases waits, as it does for the first process
/// of a container, and a thread reads them from a signalfd. That thread goes on when another one waits for a
/// file server or for a reader, where no handler would run. SIGINT and SIGHUP stay ignored where they are
/// (nohup). There is one at a time, made before other threads, and no InterruptGuard beside it.
///
/// At first a signal makes check_interrupted() throw, and the process ends after `leave_time` in any case.
/// After hold() signals wait for take(). Two signals within kOneRequest are one: GNU timeout signals its
/// child, and then the group that the child is in. A later one ends the process at once, unless whoever calls
/// take() has got the first one and decides.
class SignalSource {
 public:
  /// The time for the files of a run that is asked to end.
  static constexpr std::chrono::seconds kLeaveTime{10};
  static constexpr std::chrono::seconds kReaderTime{1};
  static constexpr std::chrono::milliseconds kOneRequest{100};

  explicit SignalSource(std::chrono::seconds leave_time = kLeaveTime);
  SignalSource(const SignalSource&) = delete;
  SignalSource& operator=(const SignalSource&) = delete;
  ~SignalSource();

  /// From here on check_interrupted() throws for a signal, also for one that waits for take().
  void interrupt();
  /// From here on signals wait for take(). Throws error_of_signal() if one has come before.
  void hold();
  /// From here on check_interrupted() does not throw, and the first signal ends it within `leave_time`.
  void close();
  /// The first signal that waits.
  std::optional<int> take();
  /// Whether a signal waits that asks the process to end. One that was sent before this call counts.
  [[nodiscard]] bool has_to_end();
  /// Whether a signal has asked the process to end, taken or not.
  [[nodiscard]] bool is_asked_to_end();
  /// A descriptor that is readable while a signal waits.
  [[nodiscard]] int fd() const { return news_; }
  /// Ends the process with `code` after `leave_time`, or kReaderTime if `writes_alone`: it has only messages
  /// to write, for which somebody may not read. The first code and the earlier end count.
  void leave_soon(ExitCode code, bool writes_alone = false);

 private:
  enum class Phase { kInterrupt, kHold, kClosed };

  void serve();
  void receive();
  void arrive(int signal);
  static void interrupt_by(int signal);
  void restore();
  void leave_within(std::chrono::seconds time, ExitCode code);

  std::chrono::seconds leave_time_;
  sigset_t previous_{};
  int signals_ = -1;
  int timer_ = -1;
  int news_ = -1;  ///< An eventfd.
  int ends_ = -1;  ///< An eventfd, which ends the thread.
  std::mutex mutex_;
  Phase phase_ = Phase::kInterrupt;
  std::deque<int> waiting_;
  std::optional<std::chrono::steady_clock::time_point> first_;  ///< When the first request to end came.
  std::optional<ExitCode> leaves_with_;
  std::thread thread_;
};

}  // namespace accel
