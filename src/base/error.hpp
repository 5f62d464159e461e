#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "base/exit_code.hpp"

namespace accel {

/// What sort of failure an Error is. The kind alone decides the exit code.
enum class ErrorKind {
  kFailure,      ///< The operating system refused, or something else went wrong.
  kMemory,       ///< There is not enough memory, on the host or on a device.
  kDiverged,     ///< The numbers of a training are not finite any more.
  kUsage,        ///< The command line or the configuration is wrong.
  kMissing,      ///< A checkpoint, or a part of it, is not there.
  kCorrupt,      ///< Bytes contradict their own format.
  kWorker,       ///< A launched process failed.
  kPreempted,    ///< The run stopped on request, after saving.
  kHungUp,       ///< The process received SIGHUP.
  kInterrupted,  ///< The process received SIGINT.
  kUserSignal1,  ///< The process received SIGUSR1.
  kUserSignal2,  ///< The process received SIGUSR2.
  kTerminated,   ///< The process received SIGTERM.
};

ExitCode exit_code_of(ErrorKind kind);
std::string_view name_of(ErrorKind kind);
/// Whether a signal has ended the command.
bool is_by_signal(ErrorKind kind);

/// The one exception type of this project. The message says what failed, on what, what was found and what was
/// expected; the hint says what to do. Callers add context, so that the outermost stands first:
///
///   throw Error(ErrorKind::kCorrupt, fmt::format("needs {} bytes, has {}", want, have))
///       .hint("the file may be truncated");
///
///   catch (Error& e) { e.add_context(fmt::format("'{}'", path)); throw; }
class Error : public std::exception {
 public:
  Error(ErrorKind kind, std::string message);

  /// Sets the advice that is printed on a line of its own. Chainable on a temporary.
  Error&& hint(std::string advice) &&;
  /// Puts `context` and a colon in front of the message.
  void add_context(std::string_view context);

  [[nodiscard]] ErrorKind kind() const { return kind_; }
  [[nodiscard]] const std::string& message() const { return message_; }
  [[nodiscard]] const std::string& advice() const { return advice_; }
  [[nodiscard]] const char* what() const noexcept override { return message_.c_str(); }

 private:
  ErrorKind kind_;
  std::string message_;
  std::string advice_;
};

/// An Error of kind kFailure for a failed system call: "cannot <action> '<path>': <strerror>". For EINTR it
/// first calls check_interrupted(), which throws if a signal has come.
Error system_error(std::string_view action, std::string_view path, int errno_value);

/// Returns the Error of a command that `signal` has ended, such as "terminated by SIGHUP". A signal without
/// an ErrorKind of its own gets that of SIGTERM.
Error error_of_signal(int signal);

/// Returns the exit code of a command that `signal` has ended.
ExitCode exit_code_of_signal(int signal);

/// Throws an Error of kind kCorrupt: `message` says what is wrong in a file. Callers above add its path.
[[noreturn]] void throw_corrupt(std::string message);

/// Makes an Error of any exception. An Error stays as it is, one of std::filesystem becomes a failed system
/// call on its path, and any other keeps its message. Only the places that report uncaught exceptions call
/// this function.
Error error_of(const std::exception& failure);

}  // namespace accel
