#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace accel::launch {

/// What a program printed on stdout, and how it ended.
struct ProgramOutput {
  enum class End {
    kMissing,  ///< There is no such program along PATH.
    kFailed,   ///< It could not be started, ended with another exit code than 0, or printed nothing.
    kTooLate,  ///< It did not end in time, or was cancelled.
    kDone,
  };
  End end = End::kFailed;
  std::string text;  ///< Empty unless `end` is kDone.
};

/// Runs a program, which is searched along PATH, and takes its output. stdin and stderr are /dev/null. The
/// program gets a process group of its own, which is killed once `patience` has passed or `is_cancelled`
/// returns true or throws; it is asked ten times a second. A process that SIGKILL does not end within a
/// second is left behind. May be called from any thread.
ProgramOutput output_of(const std::vector<std::string>& command, std::chrono::milliseconds patience,
                        const std::function<bool()>& is_cancelled);

}  // namespace accel::launch
