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
#include "base/files/no_sync.hpp"
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
/// A look that takes longer says nothing of the owner.
constexpr std::chrono::seconds kStall{2};

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

/// Whether there is no record: a file that cannot be looked at may have one.
bool has_no_record(const fs::path& file) {
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(file, error);
  return error ? error == std::errc::no_such_file_or_directory : bytes == 0;
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
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t count = ::pwrite(fd, text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (count <= 0) return false;
    done += static_cast<std::size_t>(count);
  }
  return ::ftruncate(fd, static_cast<off_t>(text.size())) == 0 && (::fsync(fd) == 0 || has_no_sync(errno));
}

/// `by` has no token if nobody is there any more.
Error taken_over(const fs::path& folder, const LockOwner& by) {
  return Error(ErrorKind::kFailure,
               by.token.empty()
                   ? fmt::format("the lock of '{}' has gone", folder.string())
                   : fmt::format("another run has taken '{}' over: {}", folder.string(), to_string(by)))
      .hint("this run had shown no sign of life for longer than launch.lock_timeout");
}

/// A clock that runs on while the machine sleeps or stands still.
Clock::duration time_with_suspension() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
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
    struct stat status {};
    if (::stat(folder_.c_str(), &status) == 0) owner_.device = status.st_dev;
    const FileSystem system = file_system_of(folder_);
    reach_ = system.reach;
    if (reach_ != LockReach::kUnknown) return;
    log::warn(
        fmt::format("'{}' is on {}, whose locks may not reach other hosts: there only the record in {} keeps "
                    "another run away",
                    folder_.string(), system.type, kLockName));
  }

  /// Whether this user can make no lock and nobody else has one.
  [[nodiscard]] bool is_out_of_reach() const {
    if (open_lock(file_, O_CREAT)) return false;
    const bool is_forbidden = errno == EACCES || errno == EPERM || errno == EROFS;
    return is_forbidden && !fs::exists(fs::symlink_status(file_));
  }

  /// Nothing if the file has changed meanwhile, and must be looked at again.
  std::optional<std::pair<Fd, LockOwner>> try_once() {
    check_interrupted();
    Fd fd = open_lock(file_, O_CREAT);
    if (!fd) throw cannot_open(file_, errno);
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) throw cannot_open(file_, errno);
    State state = lock_of(fd.get());
    const std::optional<LockOwner> other = read_lock(file_);
    if (state == State::kHeld && !is_at(file_, fd.get())) {
      pause();
      return std::nullopt;
    }
    if (other) unreadable_since_.reset();
    const bool may_have_owner =
        state == State::kNotSupported || (state == State::kHeld && reach_ != LockReach::kOneHost);
    if (!other && may_have_owner && !has_no_record(file_) && !has_waited_for_record()) {
      pause();
      return std::nullopt;
    }
    const bool decides = !other || lock_decides(*other);
    if (state == State::kTaken && decides) {
      refuse_if_patience_ends(other);
      return std::nullopt;
    }
    const bool watches = other && (!decides || state == State::kNotSupported);
    if (watches) {
      if (!is_stale(*other)) {
        // If it has gone, or another one has come, all is looked at again.
        const std::optional<LockOwner> now = read_lock(file_);
        if (now && now->token == other->token) refuse_if_patience_ends(now);
        return std::nullopt;
      }
      log::warn(fmt::format("taking '{}' over from {}, which has shown no sign of life for {:g} s",
                            folder_.string(), to_string(*other), stale_after(*other)));
    }
    if (state == State::kTaken) {
      // The kernel that has the lock may be gone, and its server keeps it: the new owner has a new file.
      if (read_lock(file_) != other) return std::nullopt;
      if (::unlink(file_.c_str()) != 0 && errno != ENOENT)
        throw system_error("remove", file_.string(), errno);
      fd = open_lock(file_, O_CREAT | O_EXCL);
      if (!fd) return std::nullopt;
      state = lock_of(fd.get());
    }
    owner_.locked = state == State::kHeld;
    replaced_ = watches ? other->token : "";
    if (!write_record(fd.get(), owner_)) throw system_error("write", file_.string(), errno);
    const bool settles = reach_ != LockReach::kOneHost || watches || state == State::kNotSupported;
    return settles && !is_settled() ? std::nullopt : std::optional(std::pair(std::move(fd), owner_));
  }

  /// Removes the record of an attempt that was interrupted.
  void give_up() noexcept {
    try {
      const std::optional<LockOwner> now = read_lock(file_);
      if (now && now->token == owner_.token) ::unlink(file_.c_str());
    } catch (const std::exception&) {
      // The next owner finds it stale.
    }
  }

  /// The token of the owner from which the lock was taken over; empty if there was none.
  [[nodiscard]] const std::string& replaced() const { return replaced_; }

 private:
  /// Whether the lock alone tells if that owner lives: it has the lock, and its lock is seen here. No other
  /// kernel has a local file system, so an owner of another boot_id() there is that before a reboot. Two
  /// mounts on one kernel may keep their locks to themselves, unless all hosts share them.
  [[nodiscard]] bool lock_decides(const LockOwner& other) const {
    if (!other.locked) return false;
    if (reach_ == LockReach::kOneHost) return true;
    return !owner_.boot.empty() && other.boot == owner_.boot &&
           (reach_ == LockReach::kAllHosts || other.device == owner_.device);
  }

  [[nodiscard]] double stale_after(const LockOwner& other) const {
    return std::max(other.stale_after_s, request_.stale_after_s);
  }

  /// Watches an owner until its record changes, or has not for too long. Clocks of two hosts are not
  /// compared.
  [[nodiscard]] bool is_stale(const LockOwner& other) const {
    Clock::time_point begun = Clock::now();
    bool has_logged = false;
    while (Clock::now() - begun < Seconds(stale_after(other))) {
      const Clock::time_point before = Clock::now();
      pause();
      // A record that cannot be read is being written, or its file has gone.
      if (read_lock(file_) != other) return false;
      // While the server does not answer, the owner cannot write either.
      if (Clock::now() - before > kStall) begun = Clock::now();
      if (has_logged || Clock::now() - begun < kSettleTime) continue;
      log::info(fmt::format("'{}' is held by {}: waiting for up to {:g} s to see whether it lives",
                            folder_.string(), to_string(other), stale_after(other)));
      has_logged = true;
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

  /// A record that cannot be read now, since the server is away or its owner writes it, is not that of
  /// nobody.
  [[nodiscard]] bool has_waited_for_record() {
    const Clock::time_point now = Clock::now();
    if (!unreadable_since_) {
      log::info(fmt::format("the record in '{}' cannot be read: waiting for up to {:g} s", file_.string(),
                            request_.stale_after_s));
      unreadable_since_ = now;
    }
    return now - *unreadable_since_ >= Seconds(request_.stale_after_s);
  }

  /// A command has the lock for a moment, a run for long. An owner without a record is about to write it.
  void refuse_if_patience_ends(const std::optional<LockOwner>& other) {
    const bool is_command = other && other->what != RunLock::kRun;
    if (is_command && !has_logged_) {
      log::info(fmt::format("waiting for {}, which is at work on '{}' ({})", other->what, folder_.string(),
                            to_string(*other)));
      has_logged_ = true;
    }
    const std::string holder = other ? other->token : "";
    if (holder != waits_for_) {
      waits_for_ = holder;
      waits_since_ = Clock::now();
    }
    const Seconds patience = is_command ? Seconds(request_.stale_after_s) : other ? Seconds(0) : kRecordTime;
    if (Clock::now() - waits_since_ < patience) return pause();
    throw Error(
        ErrorKind::kUsage,
        fmt::format("{} is writing into '{}': {}", is_command ? other->what : "another run", folder_.string(),
                    other ? fmt::format("its lock is held by {}", to_string(*other))
                          : fmt::format("its {} is locked, and names nobody", kLockName)))
        .hint(request_.hint);
  }

  fs::path folder_;  ///< The path as the caller gave it, for messages.
  fs::path file_;
  const RunLock::Request& request_;
  LockOwner owner_;
  LockReach reach_ = LockReach::kUnknown;
  std::string replaced_;
  bool has_logged_ = false;
  std::string waits_for_ = "nobody yet";
  Clock::time_point waits_since_;
  std::optional<Clock::time_point> unreadable_since_;
};

}  // namespace

std::unique_ptr<RunLock> RunLock::take(const fs::path& folder, const Request& request) {
  const fs::path file = fs::canonical(folder) / kLockName;
  Taker taker(folder, file, request);
  if (request.is_optional && taker.is_out_of_reach()) return nullptr;
  try {
    while (true) {
      if (auto taken = taker.try_once())
        return std::unique_ptr<RunLock>(
            new RunLock(folder, file, std::move(taken->first), std::move(taken->second), taker.replaced()));
    }
  } catch (...) {
    taker.give_up();
    throw;
  }
}

RunLock::RunLock(fs::path folder, fs::path file, Fd fd, LockOwner owner, std::string replaced)
    : folder_(std::move(folder)),
      file_(std::move(file)),
      fd_(std::move(fd)),
      owner_(std::move(owner)),
      replaced_(std::move(replaced)),
      seen_at_(time_with_suspension()) {
  beats_ = thread_without_signals([this] { count_beats(); });
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
void RunLock::count_beats() {
  const Seconds pause(owner_.stale_after_s / 6);
  std::unique_lock lock(mutex_);
  while (!wakes_.wait_for(lock, pause, [this] { return ends_; })) {
    lock.unlock();
    std::optional<LockOwner> other;
    try {
      other = beat();
    } catch (const std::exception&) {
      // There is no memory for it now.
    }
    lock.lock();
    if (!other) continue;
    taken_by_ = std::move(other);
    if (terminates_) ::kill(::getpid(), SIGTERM);
    return;
  }
}

/// Returns who has taken the lock; nothing if it is still this owner's.
std::optional<LockOwner> RunLock::beat() {
  std::optional<LockOwner> now = read_lock(file_);
  // The owner before may have written its last beat late.
  if (now && now->token != owner_.token && now->token != replaced_) return now;
  if (!now && !is_at(file_, fd_.get())) {
    // Somebody has removed the file. An owner in between may have done so when it was done.
    if (time_with_suspension() - seen_at_ > Seconds(owner_.stale_after_s)) return LockOwner();
    if (Fd fd = open_lock(file_, O_CREAT | O_EXCL)) {
      owner_.locked = lock_of(fd.get()) == State::kHeld;
      fd_ = std::move(fd);
    }
  }
  ++owner_.beats;
  if (write_record(fd_.get(), owner_)) {
    seen_at_ = time_with_suspension();
  } else if (errno == EIO || errno == ESTALE || errno == EBADF) {
    // A server that has given up the lock refuses all writes by its descriptor. The next beat has a new one.
    fd_.reset();
    fd_ = open_lock(file_, 0);
    owner_.locked = fd_ && lock_of(fd_.get()) == State::kHeld;
  }
  return std::nullopt;
}

void RunLock::require() const {
  require_as_known();
  require_lock(file_.parent_path(), token());
}

void RunLock::require_as_known() const {
  const std::lock_guard lock(mutex_);
  if (taken_by_) throw taken_over(folder_, *taken_by_);
}

void require_lock(const fs::path& folder, const std::string& token) {
  const std::optional<LockOwner> now = read_lock(folder / kLockName);
  if (now && token.find(now->token) == std::string::npos) throw taken_over(folder, *now);
}

}  // namespace accel::ckpt
