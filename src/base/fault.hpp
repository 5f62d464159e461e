#pragma once

#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

/// Faults on purpose, for crash tests: every system call of this project that changes files passes through
/// here, numbered from 1 in the order of the calls. A plan, from ACCEL_FAULT or a Scope, says what happens:
///
///   count                 nothing; for the log
///   kill@17               SIGKILL instead of the 17th call
///   killafter@17          SIGKILL right after the 17th call
///   torn@17               half of the 17th call's bytes, then SIGKILL (no write: as kill)
///   stop@17               SIGSTOP before the 17th call, for whoever wants to send a signal just there
///   fail@17[:ENOSPC]      the 17th call fails, with EIO unless another name is given
///   full@17               from the 17th on, calls that take space fail with ENOSPC
///
/// `fail@exchange:EINVAL`, with the name of an operation, fails all such calls. Several plans are joined by
/// commas; the first that applies wins. With ACCEL_FAULT_LOG=FILE each call is noted there as a line
/// "17 rename PATH"; `count` without it writes the lines to stderr. Without a plan a call costs one load of
/// an atomic.
namespace accel::fault {

enum class Operation {
  kCreate,
  kWrite,
  kCopy,
  kReserve,
  kTruncate,
  kSync,
  kSyncDirectory,
  kRename,
  kRenameNew,
  kExchange,
  kLink,
  kSymlink,
  kUnlink,
  kMakeDirectory,
  kRemoveDirectory,
  kSetMode,
};

/// As in the log: "rename", "sync-dir".
std::string_view name_of(Operation operation);

/// While it lives, `plan` is in force in this process and what the environment says is not. For tests; not
/// nested, and not while other threads touch files.
class Scope {
 public:
  explicit Scope(std::string_view plan);
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  ~Scope();

  /// The calls so far, as the log has them but without the number.
  [[nodiscard]] std::vector<std::string> points() const;
};

namespace detail {

/// False once it is known that there is no plan.
inline std::atomic<bool> may_be_active{true};

struct Verdict {
  int error = 0;            ///< The call is not made and fails with this.
  bool half = false;        ///< Half the bytes ...
  bool kill_after = false;  ///< ... and death after the call.
};

/// Counts and logs the call; dies if that is the plan.
Verdict consider(Operation operation, const std::filesystem::path& path);
[[noreturn]] void die();

}  // namespace detail

/// `call(count)`, a system call that writes at most `count` bytes and returns how many it wrote, or -1 and
/// errno.
template <class Call>
auto transfer(Operation operation, const std::filesystem::path& path, std::size_t count, const Call& call) {
  if (!detail::may_be_active.load(std::memory_order_relaxed)) [[likely]]
    return call(count);
  const detail::Verdict verdict = detail::consider(operation, path);
  if (verdict.error != 0) {
    errno = verdict.error;
    return static_cast<decltype(call(count))>(-1);
  }
  const auto result = call(verdict.half ? std::max<std::size_t>(count / 2, 1) : count);
  if (verdict.half || verdict.kill_after) detail::die();
  return result;
}

/// `call()`, a system call that returns -1 and sets errno when it fails.
template <class Call>
auto guard(Operation operation, const std::filesystem::path& path, const Call& call) {
  return transfer(operation, path, 0, [&](std::size_t) { return call(); });
}

}  // namespace accel::fault
