#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <filesystem>

#include "base/files/fault.hpp"

/// Fault points, for the sources of base/ alone, which are compiled with ACCEL_FAULTS if the option -Dfaults
/// is true. Elsewhere, and without that option, there is the call and nothing else.
namespace accel::fault {

#ifdef ACCEL_FAULTS
constexpr bool kBuiltIn = true;
#else
constexpr bool kBuiltIn = false;
#endif

namespace detail {

/// False once it is known that there is no plan.
inline std::atomic<bool> may_be_active{true};

struct Verdict {
  int error = 0;            ///< The call is not made and fails with this errno.
  bool half = false;        ///< Half of the bytes are written, then the process dies.
  bool kill_after = false;  ///< The process dies after the call.
};

/// Counts and logs the call; dies if that is the plan.
Verdict consider(Operation operation, const std::filesystem::path& path);
[[noreturn]] void die();

}  // namespace detail

/// `call(count)`, a system call that writes at most `count` bytes and returns how many it wrote, or -1 and
/// errno.
template <class Call>
auto transfer(Operation operation, const std::filesystem::path& path, std::size_t count, const Call& call) {
  if (!kBuiltIn || !detail::may_be_active.load(std::memory_order_relaxed)) [[likely]]
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
