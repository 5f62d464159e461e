#include "base/host/signal_source.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>

#include "base/error.hpp"
#include "base/host/threads.hpp"
#include "base/interrupt.hpp"

namespace accel {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::array kRequests = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

/// A request that waits for so long is not going to be taken.
constexpr std::chrono::seconds kStuck{1};

bool asks_to_end(int signal) { return signal != SIGUSR1 && signal != SIGUSR2; }

sigset_t only(int signal) {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, signal);
  return set;
}

/// The first process of a container does not end by a signal of its own.
[[noreturn]] void leave_by(int signal) {
  ::signal(signal, SIG_DFL);
  const sigset_t one = only(signal);
  ::pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  ::raise(signal);
  ::_exit(to_int(exit_code_of_signal(signal)));
}

int opened(int fd) {
  if (fd < 0) throw system_error("create", "a descriptor of signals", errno);
  return fd;
}

void add_one(int fd) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(fd, &one, sizeof one);
}

}  // namespace

SignalSource::SignalSource(std::chrono::seconds leave_time) : leave_time_(leave_time) {
  sigset_t wanted;
  ::sigemptyset(&wanted);
  for (const int signal : kRequests) {
    struct sigaction action {};
    ::sigaction(signal, nullptr, &action);
    const bool may_stay_ignored = signal == SIGINT || signal == SIGHUP;
    if (!may_stay_ignored || action.sa_handler != SIG_IGN) ::sigaddset(&wanted, signal);
  }
  ::pthread_sigmask(SIG_BLOCK, &wanted, &previous_);
  try {
    signals_ = opened(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
    timer_ = opened(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    news_ = opened(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE));
    ends_ = opened(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    thread_ = thread_without_signals([this] { serve(); });
  } catch (...) {
    restore();
    throw;
  }
}

SignalSource::~SignalSource() {
  add_one(ends_);
  thread_.join();
  detail::interrupting_signal = 0;
  restore();
}

void SignalSource::restore() {
  for (const int fd : {signals_, timer_, news_, ends_}) {
    if (fd >= 0) ::close(fd);
  }
  ::pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
}

void SignalSource::serve() {
  while (true) {
    std::array<pollfd, 3> polls = {{{signals_, POLLIN, 0}, {timer_, POLLIN, 0}, {ends_, POLLIN, 0}}};
    ::poll(polls.data(), polls.size(), -1);
    const std::lock_guard lock(mutex_);
    receive();
    if (polls[1].revents != 0 && leaves_with_) ::_exit(to_int(*leaves_with_));
    if (polls[2].revents != 0) return;
  }
}

void SignalSource::receive() {
  signalfd_siginfo info{};
  while (::read(signals_, &info, sizeof info) == sizeof info) arrive(static_cast<int>(info.ssi_signo));
}

void SignalSource::arrive(int signal) {
  const Clock::time_point now = Clock::now();
  // Whoever takes signals decides what a second one does. If the first still waits, nobody takes them now.
  const bool is_taken = phase_ == Phase::kHold && waiting_.empty();
  const Clock::duration patience = phase_ == Phase::kHold ? Clock::duration(kStuck) : kOneRequest;
  const bool ends = asks_to_end(signal) || phase_ == Phase::kInterrupt;
  if (ends && first_ && !is_taken && now - *first_ >= patience) leave_by(signal);
  waiting_.push_back(signal);
  if (ends) first_ = first_.value_or(now);
  if (phase_ == Phase::kInterrupt) interrupt_by(signal);
  if (ends && phase_ != Phase::kHold) leave_within(leave_time_, exit_code_of_signal(signal));
  add_one(news_);
}

void SignalSource::interrupt_by(int signal) {
  if (detail::interrupting_signal == 0) detail::interrupting_signal = signal;
}

void SignalSource::leave_within(std::chrono::seconds time, ExitCode code) {
  leaves_with_ = leaves_with_.value_or(code);
  itimerspec left{};
  ::timerfd_gettime(timer_, &left);
  const bool is_armed = left.it_value.tv_sec > 0 || left.it_value.tv_nsec > 0;
  if (is_armed && left.it_value.tv_sec < time.count()) return;
  left = {{}, {time.count(), 0}};
  ::timerfd_settime(timer_, 0, &left, nullptr);
}

void SignalSource::interrupt() {
  const std::lock_guard lock(mutex_);
  phase_ = Phase::kInterrupt;
  if (waiting_.empty()) return;
  interrupt_by(waiting_.front());
  leave_within(leave_time_, exit_code_of_signal(waiting_.front()));
}

void SignalSource::hold() {
  const std::lock_guard lock(mutex_);
  receive();
  if (!waiting_.empty()) throw error_of_signal(waiting_.front());
  phase_ = Phase::kHold;
}

void SignalSource::close() {
  const std::lock_guard lock(mutex_);
  phase_ = Phase::kClosed;
  detail::interrupting_signal = 0;
  const auto end = std::find_if(waiting_.begin(), waiting_.end(), asks_to_end);
  if (end != waiting_.end()) leave_within(leave_time_, exit_code_of_signal(*end));
}

std::optional<int> SignalSource::take() {
  const std::lock_guard lock(mutex_);
  receive();
  std::uint64_t one = 0;
  [[maybe_unused]] const ssize_t read = ::read(news_, &one, sizeof one);
  if (waiting_.empty()) return std::nullopt;
  const int signal = waiting_.front();
  waiting_.pop_front();
  return signal;
}

bool SignalSource::has_to_end() {
  const std::lock_guard lock(mutex_);
  receive();
  return std::any_of(waiting_.begin(), waiting_.end(), asks_to_end);
}

bool SignalSource::is_asked_to_end() {
  const std::lock_guard lock(mutex_);
  return first_.has_value();
}

void SignalSource::leave_soon(ExitCode code, bool writes_alone) {
  const std::lock_guard lock(mutex_);
  leave_within(writes_alone ? kReaderTime : leave_time_, code);
}

}  // namespace accel
