#include "ckpt/store/run_pulse.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include "base/files/fd.hpp"
#include "base/host/host_name.hpp"
#include "ckpt/store/lock_owner.hpp"

namespace accel::ckpt {
namespace {

/// Of an owner that this user may not ask.
constexpr double kStaleAfterSeconds = 60;

/// Whether somebody has the lock of the open file description that a RunLock has.
bool is_locked(const std::filesystem::path& file) {
  const Fd fd(::open(file.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct flock whole {};
  whole.l_type = F_RDLCK;
  whole.l_whence = SEEK_SET;
  return fd && ::fcntl(fd.get(), F_OFD_GETLK, &whole) == 0 && whole.l_type != F_UNLCK;
}

}  // namespace

bool RunPulse::lives() {
  const std::filesystem::path file = folder_ / ".lock";
  struct stat status {};
  if (::lstat(file.c_str(), &status) != 0) return false;
  const auto owner = read_lock(file);
  if (owner && is_locked(file)) return true;
  const bool is_here = owner && owner->locked && owner->boot == boot_id() && owner->device == status.st_dev;
  if (is_here) return false;
  // The file of another user cannot be read, but each beat is written into it.
  const std::int64_t beat = owner ? static_cast<std::int64_t>(owner->beats) : status.st_mtim.tv_sec;
  if (beat != beat_) {
    beat_ = beat;
    beat_at_ = Clock::now();
  }
  const double patience = owner ? owner->stale_after_s : kStaleAfterSeconds;
  return std::chrono::duration<double>(Clock::now() - beat_at_).count() < patience;
}

}  // namespace accel::ckpt
