#include "locks.hpp"

#include <unistd.h>

#include <cerrno>

Locks::~Locks() {
  for (const auto& [key, held] : held_) ::close(held.fd);
}

int Locks::set(uint64_t owner, uint64_t handle, const char* path, struct flock lock) {
  const std::lock_guard guard(mutex_);
  if (lock.l_type == F_UNLCK && !held_.contains(owner)) return 0;
  const int fd = fd_of(owner, handle, path);
  if (fd < 0) return errno;
  lock.l_pid = 0;  // F_OFD_SETLK demands it.
  return ::fcntl(fd, F_OFD_SETLK, &lock) == 0 ? 0 : errno;
}

int Locks::find(uint64_t owner, const char* path, struct flock& lock) {
  const std::lock_guard guard(mutex_);
  const auto held = held_.find(owner);
  const int fd = held != held_.end() ? held->second.fd : ::open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return errno;
  lock.l_pid = 0;
  const int error = ::fcntl(fd, F_OFD_GETLK, &lock) == 0 ? 0 : errno;
  if (held == held_.end()) ::close(fd);
  return error;
}

void Locks::closed(uint64_t owner) {
  const std::lock_guard guard(mutex_);
  const auto held = held_.find(owner);
  if (held == held_.end()) return;
  ::close(held->second.fd);
  held_.erase(held);
}

void Locks::released(uint64_t handle) {
  const std::lock_guard guard(mutex_);
  std::erase_if(held_, [handle](const auto& entry) {
    const bool is_gone = entry.second.handle == handle;
    if (is_gone) ::close(entry.second.fd);
    return is_gone;
  });
}

int Locks::fd_of(uint64_t owner, uint64_t handle, const char* path) {
  Held& held = held_[owner];
  if (held.fd < 0) {
    held.fd = ::open(path, O_RDWR | O_CLOEXEC);
    held.handle = handle;
    if (held.fd < 0) held_.erase(owner);
  }
  return held.fd;
}
