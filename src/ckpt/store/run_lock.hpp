#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/files/fd.hpp"
#include "ckpt/store/lock_owner.hpp"

namespace accel::ckpt {

/// The claim of one run on a directory: on all hosts that have it, as far as its file system allows
/// (docs/design/030). It is the file `.lock` there, which its owner alone may open (mode 0600), with a lock
/// of its open file description on it and the owner's record in it. A thread counts the record's beats on. An
/// owner on this kernel is alive as long as it has the lock. One on another kernel is alive as long as its
/// beats go on, whatever the lock says.
class RunLock {
 public:
  static constexpr const char* kRun = "a run";

  struct Request {
    std::string what = kRun;  ///< LockOwner::what.
    std::string run_id = {};
    double stale_after_s = 60;  ///< LockOwner::stale_after_s. That of the other owner counts too.
    std::string hint = {};      ///< What to do if another owner lives.
    /// Without a lock file in a directory where this user can make none, take() returns null.
    bool is_optional = false;
  };

  /// Takes the lock of `folder`, which exists. It waits for a command that has it for a moment, and watches
  /// an owner on another kernel until its beats go on or it is stale, and says so in the log. Throws Error:
  /// kUsage that names the owner if it lives; kFailure if the file cannot be made or opened.
  static std::unique_ptr<RunLock> take(const std::filesystem::path& folder, const Request& request);

  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  /// Removes the file, unless another owner has it.
  ~RunLock();

  /// What require_lock() takes: the token of this owner, and that of a stale one before it, which may still
  /// write its record once.
  [[nodiscard]] std::string token() const {
    return replaced_.empty() ? owner_.token : owner_.token + "+" + replaced_;
  }
  /// Throws Error (kFailure) if another owner has taken the lock, for which this one was stale.
  void require() const;
  /// Throws like require(), but only if a beat has found the other owner already. It reads no file.
  void require_as_known() const;
  /// Sends this process SIGTERM as soon as another owner has taken the lock.
  void terminate_when_taken() { terminates_ = true; }

 private:
  RunLock(std::filesystem::path folder, std::filesystem::path file, Fd fd, LockOwner owner,
          std::string replaced);
  void count_beats();
  [[nodiscard]] std::optional<LockOwner> beat();

  std::filesystem::path folder_;  ///< The path as the caller gave it, for messages.
  std::filesystem::path file_;
  Fd fd_;
  LockOwner owner_;
  std::string replaced_;                         ///< The token of the owner before, if that was stale.
  std::chrono::steady_clock::duration seen_at_;  ///< When other hosts could last see a beat.
  std::atomic<bool> terminates_ = false;
  mutable std::mutex mutex_;  ///< Guards the two members below.
  std::condition_variable wakes_;
  bool ends_ = false;
  std::optional<LockOwner> taken_by_;
  std::thread beats_;
};

/// What RunLock::require() throws for the lock of `folder`, seen by another process than that with the lock,
/// whose RunLock::token() is `token`. A lock file that somebody has removed is no other owner.
void require_lock(const std::filesystem::path& folder, const std::string& token);

}  // namespace accel::ckpt
