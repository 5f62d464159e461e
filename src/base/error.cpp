#include "base/error.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <new>
#include <system_error>
#include <utility>

#include "base/interrupt.hpp"
#include "base/signal_name.hpp"
#include "base/text.hpp"

namespace accel {

ExitCode exit_code_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kFailure:
    case ErrorKind::kMemory:
    case ErrorKind::kDiverged:
      return ExitCode::kFailure;
    case ErrorKind::kUsage:
      return ExitCode::kUsage;
    case ErrorKind::kMissing:
      return ExitCode::kCheckpointMissing;
    case ErrorKind::kCorrupt:
      return ExitCode::kCheckpointCorrupt;
    case ErrorKind::kWorker:
      return ExitCode::kWorkerFailed;
    case ErrorKind::kPreempted:
      return ExitCode::kPreempted;
    case ErrorKind::kHungUp:
      return ExitCode::kHungUp;
    case ErrorKind::kInterrupted:
      return ExitCode::kInterrupted;
    case ErrorKind::kUserSignal1:
      return ExitCode::kUserSignal1;
    case ErrorKind::kUserSignal2:
      return ExitCode::kUserSignal2;
    case ErrorKind::kTerminated:
      return ExitCode::kTerminated;
  }
  return ExitCode::kFailure;
}

std::string_view name_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kFailure:
      return "failure";
    case ErrorKind::kMemory:
      return "memory";
    case ErrorKind::kDiverged:
      return "diverged";
    case ErrorKind::kUsage:
      return "usage";
    case ErrorKind::kMissing:
      return "missing";
    case ErrorKind::kCorrupt:
      return "corrupt";
    case ErrorKind::kWorker:
      return "worker";
    case ErrorKind::kPreempted:
      return "preempted";
    case ErrorKind::kHungUp:
      return "hung_up";
    case ErrorKind::kInterrupted:
      return "interrupted";
    case ErrorKind::kUserSignal1:
      return "user_signal_1";
    case ErrorKind::kUserSignal2:
      return "user_signal_2";
    case ErrorKind::kTerminated:
      return "terminated";
  }
  return "failure";
}

bool is_by_signal(ErrorKind kind) { return to_int(exit_code_of(kind)) > kSignalBase; }

Error::Error(ErrorKind kind, std::string message) : kind_(kind), message_(std::move(message)) {}

Error&& Error::hint(std::string advice) && {
  advice_ = std::move(advice);
  return std::move(*this);
}

void Error::add_context(std::string_view context) { message_ = fmt::format("{}: {}", context, message_); }

Error system_error(std::string_view action, std::string_view path, int errno_value) {
  if (errno_value == EINTR) check_interrupted();
  Error error(ErrorKind::kFailure,
              fmt::format("cannot {} '{}': {}", action, path, std::generic_category().message(errno_value)));
  if (errno_value == ENOSPC || errno_value == EDQUOT)
    return std::move(error).hint("free some space and try again");
  if (errno_value == EFBIG)
    return std::move(error).hint(
        "the limit on the size of a file is too low (ulimit -f), or the file system's is");
  return error;
}

Error error_of_signal(int signal) {
  const char* known = signal_name(signal);
  const std::string name = known != nullptr ? fmt::format("SIG{}", known) : fmt::format("signal {}", signal);
  switch (signal) {
    case SIGINT:
      return {ErrorKind::kInterrupted, "interrupted by " + name};
    case SIGHUP:
      return {ErrorKind::kHungUp, "terminated by " + name};
    case SIGUSR1:
      return {ErrorKind::kUserSignal1, "terminated by " + name};
    case SIGUSR2:
      return {ErrorKind::kUserSignal2, "terminated by " + name};
    default:
      return {ErrorKind::kTerminated, "terminated by " + name};
  }
}

ExitCode exit_code_of_signal(int signal) { return exit_code_of(error_of_signal(signal).kind()); }

[[noreturn]] void throw_corrupt(std::string message) { throw Error(ErrorKind::kCorrupt, std::move(message)); }

Error error_of(const std::exception& failure) {
  if (const auto* error = dynamic_cast<const Error*>(&failure)) return *error;
  if (const auto* error = dynamic_cast<const std::filesystem::filesystem_error*>(&failure))
    return system_error("access", error->path1().string(), error->code().value());
  if (dynamic_cast<const std::bad_alloc*>(&failure) != nullptr)
    return {ErrorKind::kMemory, "there is not enough memory"};
  // Some messages of libtorch begin with an empty line.
  const std::string what(trim(failure.what()));
  // What libtorch says of a device and of the host.
  const bool is_memory = what.find("out of memory") != std::string::npos ||
                         what.find("can't allocate memory") != std::string::npos;
  return {is_memory ? ErrorKind::kMemory : ErrorKind::kFailure, what};
}

}  // namespace accel
