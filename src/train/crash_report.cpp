#include "train/crash_report.hpp"

#include <execinfo.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>

#include "base/signal_name.hpp"

namespace accel::train {
namespace {

/// The report shows a dozen lines.
constexpr int kFrames = 9;
/// The handler itself, and the kernel's frame that called it.
constexpr int kOwnFrames = 2;

void write_text(const char* text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
}

/// Calls functions alone that need no memory: the crash may have happened in malloc.
void on_crash(int signal) {
  write_text("crashed by SIG");
  write_text(signal_name(signal));
  write_text(", at:\n");
  std::array<void*, kOwnFrames + kFrames> frames{};
  const int count = ::backtrace(frames.data(), static_cast<int>(frames.size()));
  if (count > kOwnFrames) ::backtrace_symbols_fd(&frames[kOwnFrames], count - kOwnFrames, STDERR_FILENO);
  // SA_RESETHAND has put back the default action, which takes place when the handler returns.
  ::raise(signal);
}

}  // namespace

void report_crashes() {
  // The first call loads a library, which a handler must not do.
  std::array<void*, 1> frame{};
  ::backtrace(frame.data(), 1);
  struct sigaction action {};
  action.sa_handler = on_crash;
  action.sa_flags = SA_RESETHAND;
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) ::sigaction(signal, &action, nullptr);
}

}  // namespace accel::train
