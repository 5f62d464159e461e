#pragma once

#include <fcntl.h>

#include <cstdint>
#include <map>
#include <mutex>

/// The locks that processes of one mount hold on one file. Each owner has an open file description of its
/// own, and a lock is an OFD lock of that one, so that the mounts of one folder exclude each other as the
/// clients of an NFS server do.
class Locks {
 public:
  Locks() = default;
  Locks(const Locks&) = delete;
  Locks& operator=(const Locks&) = delete;
  ~Locks();

  /// Sets or removes a lock of `owner`, who came by the open file `handle`; `path` opens the file. Does not
  /// wait. Returns 0 or an errno, EAGAIN if somebody else holds a lock.
  int set(uint64_t owner, uint64_t handle, const char* path, struct flock lock);

  /// Replaces `lock` by a lock that keeps `owner` from having it, or by F_UNLCK. Returns 0 or an errno.
  int find(uint64_t owner, const char* path, struct flock& lock);

  /// Removes what `owner` holds with POSIX locks: a process that closes any of its descriptors of a file
  /// loses them.
  void closed(uint64_t owner);

  /// Removes all that came by the open file `handle`, whose last descriptor is closed.
  void released(uint64_t handle);

 private:
  struct Held {
    int fd = -1;
    uint64_t handle = 0;
  };
  int fd_of(uint64_t owner, uint64_t handle, const char* path);

  std::mutex mutex_;
  std::map<uint64_t, Held> held_;
};
