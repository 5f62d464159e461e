#pragma once

#include <string>
#include <string_view>
#include <vector>

/// Faults on purpose, for crash tests. Every system call of this project that changes files is a fault point
/// (base/files/fault_point.hpp). The points are numbered from 1 in the order of the calls. They exist only in
/// a build with the option -Dfaults=true; any other build makes the calls and nothing else, and ignores the
/// environment. A plan, from the variable ACCEL_FAULT or a Scope, says what happens:
///
///   count                 nothing; for the log
///   kill@17               SIGKILL instead of the 17th call
///   killafter@17          SIGKILL right after the 17th call
///   torn@17               half of the 17th call's bytes, then SIGKILL (a call that writes nothing: as kill)
///   stop@17               SIGSTOP before the 17th call, for a test that sends a signal at this point
///   fail@17[:ENOSPC]      the 17th call fails, with EIO unless another name is given
///   full@17               from the 17th on, calls that take space fail with ENOSPC
///
/// `fail@exchange:EINVAL`, with the name of an operation, fails all such calls. Several plans are joined by
/// commas; the first that applies wins. With ACCEL_FAULT_LOG=FILE each call is logged there as a line
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

/// Whether this build has fault points.
bool is_built_in();

/// The module of a device that a test puts in the place of GPUs (ACCEL_DEVICE_MODULE, tests/sim); null
/// without it, and without fault points.
const char* device_module();

/// The name in the log: "rename", "sync-dir".
std::string_view name_of(Operation operation);

/// While it lives, `plan` is in force in this process and the plan of the environment is not. Use it in
/// tests, not nested, and not while other threads touch files. Without fault points it has no effect.
class Scope {
 public:
  explicit Scope(std::string_view plan);
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  ~Scope();

  /// The calls so far, as lines of the log without the number.
  [[nodiscard]] std::vector<std::string> points() const;
};

}  // namespace accel::fault
