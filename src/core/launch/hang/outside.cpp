#include "core/launch/hang/outside.hpp"

#include <cxxabi.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <memory>

#include "base/host/system.hpp"
#include "base/text.hpp"
#include "core/launch/output/program_output.hpp"

namespace accel::launch {
namespace {

using Clock = std::chrono::steady_clock;

/// The value of a line `name:` of /proc/PID/status.
std::string field_of(const std::string& status, const std::string& name) {
  for (const std::string& line : split(status, '\n')) {
    if (!line.starts_with(name + ":")) continue;
    return std::string(trim(std::string_view(line).substr(name.size() + 1)));
  }
  return "";
}

/// The name of a function as it is written in C++.
std::string demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 ? text.get() : name;
}

/// The output of eu-stack with names as in C++.
std::string with_names(const std::string& stacks) {
  std::string text;
  for (const std::string& line : split(stacks, '\n')) {
    const std::size_t name = line.find("_Z");
    text += (name == std::string::npos ? line : line.substr(0, name) + demangled(line.substr(name))) + '\n';
  }
  return text;
}

bool is_python(pid_t pid) {
  std::error_code error;
  const auto program = std::filesystem::read_symlink(fmt::format("/proc/{}/exe", pid), error);
  return !error && program.filename().string().starts_with("python");
}

}  // namespace

bool is_zombie(pid_t pid) {
  const std::string status = kernel_text(fmt::format("/proc/{}/status", pid)).value_or("");
  const std::string state = field_of(status, "State");
  return state.starts_with('Z') || state.starts_with('X');
}

std::string state_of_process(pid_t pid) {
  const std::string status = kernel_text(fmt::format("/proc/{}/status", pid)).value_or("");
  std::string state = field_of(status, "State");
  if (state.empty() || is_zombie(pid)) return "";
  if (const std::size_t open = state.find('('); open != std::string::npos)
    state = state.substr(open + 1, state.find(')') - open - 1);
  const std::string channel = kernel_text(fmt::format("/proc/{}/wchan", pid)).value_or("");
  if (!channel.empty() && channel != "0") state += " in " + channel;
  if (const std::string threads = field_of(status, "Threads"); !threads.empty())
    state += fmt::format(", {} thread{}", threads, threads == "1" ? "" : "s");
  if (const long kib = std::atol(field_of(status, "VmRSS").c_str()); kib > 0)
    state += ", " + format_bytes(static_cast<std::uint64_t>(kib) * 1024);
  return state;
}

std::string stacks_of_process(pid_t pid, std::chrono::milliseconds patience,
                              const std::atomic<bool>& cancelled) {
  const Clock::time_point until = Clock::now() + patience;
  const std::string id = std::to_string(pid);
  std::vector<std::vector<std::string>> tools = {
      {"eu-stack", "-p", id}, {"gdb", "-p", id, "-batch", "-nx", "-ex", "thread apply all -ascending bt"}};
  if (is_python(pid)) tools.insert(tools.begin(), {"py-spy", "dump", "--pid", id});
  bool found = false;
  for (const std::vector<std::string>& tool : tools) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    if (left.count() <= 0) break;
    const ProgramOutput output = output_of(tool, left, [&cancelled] { return cancelled.load(); });
    found |= output.end != ProgramOutput::End::kMissing;
    if (output.end == ProgramOutput::End::kDone)
      return tool[0] == "eu-stack" ? with_names(output.text) : output.text;
  }
  if (cancelled) return "";
  return found ? "no stack: this process may not be traced, or it took too long\n"
               : "no stack: install elfutils (eu-stack), gdb or py-spy\n";
}

std::vector<std::string> first_stack(const std::string& stacks, std::size_t most) {
  std::vector<std::string> lines;
  bool begun = false;
  for (const std::string& line : split(stacks, '\n')) {
    std::string text(trim(line));
    const bool is_frame = text.starts_with("#") || (line.starts_with("    ") && !text.empty());
    if (begun && !is_frame) break;
    if (!is_frame) {
      if (text.starts_with("no stack")) return {text};
      continue;
    }
    begun = true;
    // "#3  0x00007f... function" of eu-stack.
    if (const std::size_t address = text.find(" 0x"); text.starts_with("#") && address != std::string::npos) {
      const std::size_t end = text.find(' ', address + 1);
      text = end == std::string::npos ? "(unknown)" : text.substr(end + 1);
      if (text.starts_with("in ")) text.erase(0, 3);
    }
    if (lines.size() < most) lines.push_back(std::move(text));
  }
  return lines;
}

}  // namespace accel::launch
