#include "base/host/kernel_log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

namespace accel {
namespace {

constexpr std::string_view kXid = "NVRM: Xid";
constexpr std::size_t kMost = 8;
/// Larger than any record, which the kernel hands out one a call.
constexpr std::size_t kRecordBytes = 16384;

/// The message of a record "PRIORITY,NUMBER,MICROSECONDS,FLAGS;MESSAGE".
std::string_view message_of(std::string_view record) {
  const std::size_t begin = record.find(';');
  return begin == std::string_view::npos ? std::string_view() : record.substr(begin + 1);
}

}  // namespace

// Without O_NONBLOCK a read at the end of the log waits for the next record.
GpuErrorLog::GpuErrorLog(const std::filesystem::path& log)
    : file_(::open(log.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  if (file_ >= 0) ::lseek(file_, 0, SEEK_END);
}

GpuErrorLog::~GpuErrorLog() {
  if (file_ >= 0) ::close(file_);
}

std::vector<std::string> GpuErrorLog::news() {
  std::vector<std::string> errors;
  std::string pending;
  std::array<char, kRecordBytes> bytes{};
  while (file_ >= 0 && errors.size() < kMost) {
    const ssize_t count = ::read(file_, bytes.data(), bytes.size());
    if (count < 0 && (errno == EINTR || errno == EPIPE)) continue;  // EPIPE: the kernel has dropped records.
    if (count <= 0) break;
    pending.append(bytes.data(), static_cast<std::size_t>(count));
    for (std::size_t end = 0; (end = pending.find('\n')) != std::string::npos; pending.erase(0, end + 1)) {
      const std::string_view message = message_of(std::string_view(pending).substr(0, end));
      const bool is_new = std::find(errors.begin(), errors.end(), message) == errors.end();
      if (message.starts_with(kXid) && is_new && errors.size() < kMost) errors.emplace_back(message);
    }
  }
  return errors;
}

}  // namespace accel
