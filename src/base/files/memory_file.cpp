#include "base/files/memory_file.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.hpp"

namespace accel {

MemoryFile::MemoryFile(std::span<const std::byte> bytes) : fd_(::memfd_create("accel", MFD_CLOEXEC)) {
  if (!fd_) throw system_error("create", "a file in memory", errno);
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw system_error("write", "a file in memory", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

std::filesystem::path MemoryFile::path() const { return fmt::format("/proc/self/fd/{}", fd_.get()); }

}  // namespace accel
