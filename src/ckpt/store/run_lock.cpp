#include "ckpt/store/run_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <ctime>
#include <utility>

#include "base/error.hpp"
#include "base/host/file_system.hpp"
#include "base/host/host_name.hpp"
#include "base/host/threads.hpp"
#include "base/interrupt.hpp"
#include "base/log.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr const char* kLockName = ".lock";
/// How long an owner may take from the lock to its record.
constexpr std::chrono::seconds kRecordTime{2};
/// After this time a record that was written here and is still there is seen by all that write theirs.
constexpr std::chrono::seconds kSettleTime{1};
constexpr std::chrono::milliseconds kLook{100};

enum class State { kHeld, kTaken, kNotSupported };

State lock_of(int fd) {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (::fcntl(fd, F_OFD_SETLK, &whole) == 0) return State::kHeld;
  return errno == EAGAIN || errno == EACCES ? State::kTaken : State::kNotSupported;
}

/// Whether `fd` is still the file of this name.
bool is_at(const fs::path& file, int fd) {
  struct stat named {};
  struct stat open {};
  return ::lstat(file.c_str(), &named) == 0 && ::fstat(fd, &open) == 0 && named.st_dev == open.st_dev &&
         named.st_ino == open.st_ino;
}

Error cannot_open(const fs::path& file, int error) {
  Error problem = system_error("open", file.string(), error);
  struct stat status {};
  if (::lstat(file.c_str(), &status) != 0) return problem;
  if (!S_ISREG(status.st_mode))
    return Error(ErrorKind::kFailure, fmt::format("'{}' is not a regular file", file.string()))
        .hint("remove it: the lock of a run has this name");
  if (status.st_uid == ::geteuid()) return problem;
  return std::move(problem).hint(
      fmt::format("it is the lock of a run of user {}; choose another directory, or remove the file if that "
                  "run is over",
                  status.st_uid));
}

Fd open_lock(const fs::path& file, int flags) {
  return Fd(::open(file.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags, 0600));
}

std::string new_token() {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != sizeof number)
    throw system_error("read", "random bytes", errno);
  return fmt::format("{:016x}", number);
}

/// Writes the record; returns whether that was possible. fsync sends it to the server of a network.
bool write_record(int fd, const LockOwner& owner) {
  const std::string text = lock_text(owner);
  return ::pwrite(fd, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()) &&
         ::ftruncate(fd, static_cast<off_t>(text.size())) == 0 && ::fsync(fd) == 0;
}

Error taken_over(const fs::path& folder, const LockOwner& by) {
  return Error(ErrorKind::kFailure,
               fmt::format("another run has taken '{}' over: {}", folder.string(), to_string(by)))
      .hint("this one had shown no sign of life for longer than launch.lock_timeout");
}

void pause() {
  check_interrupted();
  std::this_thread::sleep_for(kLook);
}

class Taker {
 public:
  Taker(fs::path folder, fs::path file, const RunLock::Request& request)
      : folder_(std::move(folder)), file_(std::move(file)), request_(request) {
    owner_.token = new_token();
    owner_.what = request.what;
    owner_.run_id = request.run_id;
    owner_.host = host_name();
    owner_.boot = boot_id();
    owner_.pid = ::getpid();
    owner_.since = std::time(nullptr);
    owner_.stale_after_s = request.stale_after_s;
    const FileSystem system = file_system_of(folder_);
    is_local_ = system.reach == LockReach::kOneHost;
    if (system.reach != LockReach::kUnknown) return;
    log::warn(
        fmt::format("'{}' is on {}, whose locks may not reach other hosts: there only the record in {} keeps "
                    "another run away",
                    folder_.string(), system.type, kLockName));
  }

  /// Nothing if the file has changed meanwhile, and must be looked at again.
  std::optional<std::pair<Fd, LockOwner>> try_once() {
    check_interrupted();
    Fd fd = open_lock(file_, O_CREAT);
    if (!fd) throw cannot_open(file_, errno);
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) throw cannot_open(file_, errno);
    const State state = lock_of(fd.get());
    const std::optional<LockOwner> other = read_lock(file_);
    if (state == State::kHeld && !is_at(file_, fd.get())) return std::nullopt;
    // No other kernel has a local file system, so one of another boot_id() is that before a reboot.
    const bool is_here = is_local_ || (other && !owner_.boot.empty() && other->boot == owner_.boot);
    if (state == State::kTaken && (!other || is_here)) {
      refuse_if_patience_ends(other);
      return std::nullopt;
    }
    const bool watches = other && (!is_here || state == State::kNotSupported);
    if (watches) {
      if (!is_stale(*other)) {
        refuse_if_patience_ends(other);
        return std::nullopt;
      }
      log::warn(fmt::format("taking '{}' over from {}, which has shown no sign of life for {:g} s",
                            folder_.string(), to_string(*other), stale_after(*other)));
    }
    if (state == State::kTaken) {
      // The kernel that has the lock may be gone, and its server keeps it: the new owner has a new file.
      if (read_lock(file_) != other || ::unlink(file_.c_str()) != 0) return std::nullopt;
      fd = open_lock(file_, O_CREAT | O_EXCL);
      if (!fd) return std::nullopt;
      lock_of(fd.get());
    }
    if (!write_record(fd.get(), owner_)) throw system_error("write", file_.string(), errno);
    const bool settles = !is_local_ || watches || state == State::kNotSupported;
    return settles && !is_settled() ? std::nullopt : std::optional(std::pair(std::move(fd), owner_));
  }

 private:
  [[nodiscard]] double stale_after(const LockOwner& other) const {
    return std::max(other.stale_after_s, request_.stale_after_s);
  }

  /// Watches an owner until its record changes, or has not for too long. Clocks of two hosts are not
  /// compared.
  [[nodiscard]] bool is_stale(const LockOwner& other) const {
    const Clock::time_point begun = Clock::now();
    bool has_said = false;
    while (Clock::now() - begun < Seconds(stale_after(other))) {
      pause();
      // A record that cannot be read is being written, or its file has gone.
      if (read_lock(file_) != other) return false;
      if (has_said || Clock::now() - begun < kSettleTime) continue;
      log::info(fmt::format("'{}' is held by {}: waiting for up to {:g} s to see whether it lives",
                            folder_.string(), to_string(other), stale_after(other)));
      has_said = true;
    }
    return true;
  }

  /// Whether nobody has written a record over this one.
  [[nodiscard]] bool is_settled() const {
    const Clock::time_point begun = Clock::now();
    while (Clock::now() - begun < kSettleTime) pause();
    const std::optional<LockOwner> now = read_lock(file_);
    return now && now->token == owner_.token;
  }

  /// A command has the lock for a moment, a run for long. An owner without a record is about to write it.
  void refuse_if_patience_ends(const std::optional<LockOwner>& other) {
    const bool is_command = other && other->what != RunLock::kRun;
    if (is_command && !has_said_) {
      log::info(fmt::format("waiting for {}, which is at work on '{}' ({})", other->what, folder_.string(),
                            to_string(*other)));
      has_said_ = true;
    }
    const Seconds patience = is_command ? Seconds(request_.stale_after_s) : other ? Seconds(0) : kRecordTime;
    if (Clock::now() - began_ < patience) return pause();
    throw Error(
        ErrorKind::kUsage,
        fmt::format("{} is writing into '{}': {}", is_command ? other->what : "another run", folder_.string(),
                    other ? fmt::format("its lock is held by {}", to_string(*other))
                          : fmt::format("its {} is locked, and names nobody", kLockName)))
        .hint(request_.hint);
  }

  fs::path folder_;  ///< As it was given, for messages.
  fs::path file_;
  const RunLock::Request& request_;
  LockOwner owner_;
  bool is_local_ = false;
  bool has_said_ = false;
  Clock::time_point began_ = Clock::now();
};

}  // namespace

std::unique_ptr<RunLock> RunLock::take(const fs::path& folder, const Request& request) {
  const fs::path file = fs::canonical(folder) / kLockName;
  Taker taker(folder, file, request);
  while (true) {
    if (auto taken = taker.try_once())
      return std::unique_ptr<RunLock>(
          new RunLock(folder, file, std::move(taken->first), std::move(taken->second)));
  }
}

RunLock::RunLock(fs::path folder, fs::path file, Fd fd, LockOwner owner)
    : folder_(std::move(folder)), file_(std::move(file)), fd_(std::move(fd)), owner_(std::move(owner)) {
  beats_ = thread_without_signals([this] { beat(); });
}

RunLock::~RunLock() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wakes_.notify_all();
  beats_.join();
  const std::optional<LockOwner> now = read_lock(file_);
  if (now && now->token == owner_.token) ::unlink(file_.c_str());
}

/// Six beats fit into the time after which an owner is stale.
void RunLock::beat() {
  const Seconds pause(owner_.stale_after_s / 6);
  std::unique_lock lock(mutex_);
  while (!wakes_.wait_for(lock, pause, [this] { return ends_; })) {
    lock.unlock();
    std::optional<LockOwner> now = read_lock(file_);
    const bool is_ours = !now || now->token == owner_.token;
    if (is_ours && !now && !is_at(file_, fd_.get())) {
      // Somebody has removed the file. Whoever makes it anew is the owner.
      if (Fd fd = open_lock(file_, O_CREAT | O_EXCL)) {
        lock_of(fd.get());
        fd_ = std::move(fd);
      }
    }
    if (is_ours) {
      ++owner_.beats;
      // What cannot be written now can be the next time; until then other hosts see no beat.
      static_cast<void>(write_record(fd_.get(), owner_));
    }
    lock.lock();
    if (is_ours) continue;
    taken_by_ = std::move(now);
    if (terminates_) ::kill(::getpid(), SIGTERM);
    return;
  }
}

void RunLock::require() const {
  const std::lock_guard lock(mutex_);
  if (taken_by_) throw taken_over(folder_, *taken_by_);
}

void require_lock(const fs::path& folder, const std::string& token) {
  const std::optional<LockOwner> now = read_lock(folder / kLockName);
  if (now && now->token != token) throw taken_over(folder, *now);
}

}  // namespace accel::ckpt
