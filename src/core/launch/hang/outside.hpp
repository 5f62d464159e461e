#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <string>
#include <vector>

namespace accel::launch {

/// Whether a process has ended and stays until its parent reaps it, in a container without an init for ever.
bool is_zombie(pid_t pid);

/// What the kernel says of a process, in one line, such as "sleeping in futex_wait_queue, 12 threads, 310
/// MB"; empty if there is no such process or it has ended.
std::string state_of_process(pid_t pid);

/// The call stacks of all threads of a process, taken from outside by the first of these programs that is
/// installed: py-spy (for a Python process), eu-stack, gdb. The process is stopped for that time and needs to
/// do nothing. The result is an explanation in one line if none of them can, or if it takes longer than
/// `patience`, and empty once `cancelled` is set. Any thread may call the function.
std::string stacks_of_process(pid_t pid, std::chrono::milliseconds patience,
                              const std::atomic<bool>& cancelled);

/// The lines of the first thread of what stacks_of_process() returns, at most `most` of them, without
/// addresses.
std::vector<std::string> first_stack(const std::string& stacks, std::size_t most);

}  // namespace accel::launch
