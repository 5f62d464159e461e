#include "ranks/shared_segment.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <random>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"

namespace accel {
namespace {

/// The shared bytes follow a page that identifies the segment: in another container a process id and a
/// descriptor number may mean something else.
constexpr std::size_t kHeaderBytes = 4096;

std::uint64_t new_token() {
  std::random_device random;
  return (static_cast<std::uint64_t>(random()) << 32) | random();
}

}  // namespace

SharedSegment::SharedSegment(Fd fd, std::size_t mapped_bytes)
    : fd_(std::move(fd)), mapped_bytes_(mapped_bytes) {
  void* mapping = ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (mapping == MAP_FAILED) throw system_error("map", "shared memory", errno);
  mapping_.reset(static_cast<std::byte*>(mapping),
                 [mapped_bytes](std::byte* memory) { ::munmap(memory, mapped_bytes); });
}

SharedSegment SharedSegment::same_mapping() const {
  SharedSegment segment;
  segment.mapping_ = mapping_;
  segment.mapped_bytes_ = mapped_bytes_;
  return segment;
}

SharedSegment SharedSegment::create(std::size_t bytes) {
  const std::size_t total = round_up<std::size_t>(bytes, kHeaderBytes) + kHeaderBytes;
  Fd fd(::memfd_create("accel-ranks", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) throw system_error("create", "shared memory", errno);
  // ftruncate would not allocate the memory.
  if (const int failed = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(total)); failed != 0)
    throw system_error(fmt::format("get {} bytes of", total), "shared memory", failed);
  // With a sealed size no process can turn another's access into a SIGBUS.
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    throw system_error("seal", "shared memory", errno);
  SharedSegment segment(std::move(fd), total);
  const std::uint64_t token = new_token();
  std::memcpy(segment.mapping_.get(), &token, sizeof token);
  return segment;
}

std::string SharedSegment::address() const {
  std::uint64_t token = 0;
  std::memcpy(&token, mapping_.get(), sizeof token);
  return fmt::format("{} {} {} {:x}", ::getpid(), fd_.get(), mapped_bytes_, token);
}

SharedSegment SharedSegment::open(const std::string& address) {
  int pid = 0;
  int number = -1;
  std::size_t bytes = 0;
  std::uint64_t token = 0;
  unsigned long long token_word = 0;
  if (std::sscanf(address.c_str(), "%d %d %zu %llx", &pid, &number, &bytes, &token_word) != 4)
    throw Error(ErrorKind::kFailure, fmt::format("'{}' is not an address of shared memory", address));
  token = token_word;
  const std::string path = fmt::format("/proc/{}/fd/{}", pid, number);
  Fd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd) throw system_error("open", path, errno);
  const auto mistaken = [&] {
    return Error(ErrorKind::kFailure, fmt::format("'{}' is not the memory that process {} shares", path, pid))
        .hint("are the ranks in different containers, or on different machines?");
  };
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw system_error("read the size of", path, errno);
  if (!S_ISREG(status.st_mode) || static_cast<std::uint64_t>(status.st_size) != bytes || bytes < kHeaderBytes)
    throw mistaken();
  SharedSegment segment(std::move(fd), bytes);
  std::uint64_t found = 0;
  std::memcpy(&found, segment.mapping_.get(), sizeof found);
  if (found != token) throw mistaken();
  segment.close_address();
  return segment;
}

std::span<std::byte> SharedSegment::bytes() const {
  return {mapping_.get() + kHeaderBytes, mapped_bytes_ - kHeaderBytes};
}

}  // namespace accel
