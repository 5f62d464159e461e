#include "base/host/kernel_log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <memory>
#include <optional>
#include <string_view>

namespace accel {
namespace {

constexpr std::string_view kXid = "NVRM: Xid";
constexpr std::size_t kMost = 8;
/// Larger than any record, which the kernel hands out one a call.
constexpr std::size_t kRecordBytes = 16384;

/// The message of a record "PRIORITY,NUMBER,MICROSECONDS,FLAGS;MESSAGE", if it is an error of a GPU and not
/// older than `since`.
std::optional<std::string> gpu_error_in(std::string_view record, std::chrono::microseconds since) {
  const std::size_t message = record.find(';');
  if (message == std::string_view::npos || !record.substr(message + 1).starts_with(kXid)) return std::nullopt;
  std::size_t time = record.find(',');
  if (time != std::string_view::npos) time = record.find(',', time + 1);
  if (time >= message) return std::nullopt;
  std::int64_t microseconds = 0;
  const auto [end, error] = std::from_chars(record.data() + time + 1, record.data() + message, microseconds);
  if (error != std::errc() || microseconds < since.count()) return std::nullopt;
  return std::string(record.substr(message + 1));
}

}  // namespace

std::chrono::microseconds kernel_log_time() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::microseconds(now.tv_nsec / 1000);
}

std::vector<std::string> gpu_errors_since(std::chrono::microseconds since, const std::filesystem::path& log) {
  std::vector<std::string> errors;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(log.c_str(), "re"), &std::fclose);
  // Without the flag a read at the end of the log waits for the next record.
  if (!file || ::fcntl(::fileno(file.get()), F_SETFL, O_NONBLOCK) != 0) return errors;
  std::string pending;
  std::array<char, kRecordBytes> bytes{};
  while (errors.size() < kMost) {
    const ssize_t count = ::read(::fileno(file.get()), bytes.data(), bytes.size());
    if (count < 0 && (errno == EINTR || errno == EPIPE)) continue;  // EPIPE: the kernel has dropped records.
    if (count <= 0) break;
    pending.append(bytes.data(), static_cast<std::size_t>(count));
    for (std::size_t end = 0; (end = pending.find('\n')) != std::string::npos; pending.erase(0, end + 1)) {
      const auto error = gpu_error_in(std::string_view(pending).substr(0, end), since);
      const bool is_new = error && std::find(errors.begin(), errors.end(), *error) == errors.end();
      if (is_new && errors.size() < kMost) errors.push_back(*error);
    }
  }
  return errors;
}

}  // namespace accel
