#include "ckpt/store/run_lock.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

#include "base/error.hpp"
#include "base/host/host_name.hpp"
#include "ckpt/store/run_checkpoints.hpp"
#include "temp_dir.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;
using testing::names_in;
using testing::TempDir;
using testing::write_file;

RunLock::Request request(const std::string& what = RunLock::kRun, double stale_after_s = 60) {
  return {what, "run-7", stale_after_s, "wait"};
}

std::string refusal(const fs::path& folder, const RunLock::Request& asked = request()) {
  try {
    const auto lock = RunLock::take(folder, asked);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.message();
  }
  return "";
}

/// What another owner writes who has found this one stale.
void take_over(const fs::path& file) {
  LockOwner other;
  other.what = RunLock::kRun;
  other.token = "another";
  other.host = "node08";
  write_file(file, lock_text(other));
}

template <class Condition>
void wait_until(const Condition& condition) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    ASSERT_LT(std::chrono::steady_clock::now(), give_up);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

TEST(RunLockTest, ASecondRunIsRefusedAndToldWhoHoldsIt) {
  const TempDir dir;
  const auto lock = RunLock::take(dir.path(), request());
  const std::string said = refusal(dir.path());
  EXPECT_TRUE(said.starts_with("another run is writing into '" + dir.path().string() +
                               "': its lock is held by " + host_name() + ", pid " +
                               std::to_string(::getpid()) + ", since 20"))
      << said;
  lock->require();
  const LockOwner owner = *read_lock(dir / ".lock");
  EXPECT_EQ(owner.run_id, "run-7");
  EXPECT_EQ(owner.token, lock->token());
  EXPECT_EQ(owner.boot, boot_id());
}

TEST(RunLockTest, OtherUsersCannotBlockIt) {
  const TempDir dir;
  const auto lock = RunLock::take(dir.path(), request());
  EXPECT_EQ(static_cast<unsigned>(fs::status(dir / ".lock").permissions()), 0600U);
}

TEST(RunLockTest, TheFileGoesWithItsOwner) {
  const TempDir dir;
  RunLock::take(dir.path(), request()).reset();
  EXPECT_TRUE(names_in(dir.path()).empty());
  EXPECT_EQ(refusal(dir.path()), "");
}

TEST(RunLockTest, AnOwnerOfThisKernelWithoutTheLockIsDead) {
  const TempDir dir;
  LockOwner killed;
  killed.boot = boot_id();
  killed.locked = true;
  killed.what = RunLock::kRun;
  killed.stale_after_s = 3600;
  write_file(dir / ".lock", lock_text(killed));
  EXPECT_EQ(refusal(dir.path()), "");
}

TEST(RunLockTest, ACommandIsWaitedFor) {
  const TempDir dir;
  auto command = RunLock::take(dir.path(), request("accel checkpoints"));
  std::thread ends([&command] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    command.reset();
  });
  EXPECT_EQ(refusal(dir.path()), "");
  ends.join();
  command = RunLock::take(dir.path(), request("accel checkpoints"));
  EXPECT_TRUE(
      refusal(dir.path(), request(RunLock::kRun, 0.2)).starts_with("accel checkpoints is writing into"));
}

TEST(RunLockTest, NothingIsSavedUnderTheLockOfAnotherOwner) {
  const TempDir dir;
  auto lock = RunLock::take(dir.path(), request());
  RunCheckpoints own(dir / "checkpoints", {"run-7 (restart 0)", dir.path(), lock->token()});
  own.begin(3);
  own.begin(4);
  own.commit(3);
  take_over(dir / ".lock");
  // What was begun cannot be committed, and nothing else is begun.
  EXPECT_THROW(own.commit(4), Error);
  EXPECT_THROW(own.begin(5), Error);
  EXPECT_EQ(own.steps(), std::vector<std::int64_t>{3});
  try {
    lock->require();
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("over: node08, pid "), std::string::npos) << error.message();
  }
  lock.reset();
  EXPECT_EQ(read_lock(dir / ".lock")->token, "another");  // It is not the loser's to remove.
}

volatile std::sig_atomic_t terminated = 0;

TEST(RunLockTest, ABeatThatFindsAnotherOwnerEndsTheProcess) {
  const TempDir dir;
  const auto before = std::signal(SIGTERM, [](int) { terminated = 1; });
  const auto lock = RunLock::take(dir.path(), request(RunLock::kRun, 0.1));
  lock->terminate_when_taken();
  wait_until([&] {
    // A beat that has begun before may write over it.
    take_over(dir / ".lock");
    return terminated == 1;
  });
  std::signal(SIGTERM, before);
  EXPECT_THROW(lock->require(), Error);
}

TEST(RunLockTest, TheLateBeatOfAStaleOwnerEndsNobody) {
  const TempDir dir;
  LockOwner stale;
  stale.token = "stale";
  stale.what = RunLock::kRun;
  stale.host = "node06";
  stale.boot = "another kernel";
  stale.stale_after_s = 0.1;
  write_file(dir / ".lock", lock_text(stale));
  const auto lock = RunLock::take(dir.path(), request(RunLock::kRun, 0.1));
  write_file(dir / ".lock", lock_text(stale));
  // Neither this process nor a rank takes it for another owner.
  lock->require();
  require_lock(dir.path(), lock->token());
  wait_until([&] {
    const auto now = read_lock(dir / ".lock");
    return now && now->token != "stale";
  });
  lock->require();
}

TEST(RunLockTest, AFileThatWasRemovedIsMadeAnew) {
  const TempDir dir;
  const auto lock = RunLock::take(dir.path(), request(RunLock::kRun, 0.1));
  fs::remove(dir / ".lock");
  require_lock(dir.path(), lock->token());
  wait_until([&dir] { return fs::exists(dir / ".lock") && read_lock(dir / ".lock"); });
  lock->require();
  EXPECT_NE(refusal(dir.path()), "");
}

TEST(RunLockTest, TheOwnerCountsOn) {
  const TempDir dir;
  const auto lock = RunLock::take(dir.path(), request(RunLock::kRun, 0.1));
  wait_until([&] {
    const auto now = read_lock(dir / ".lock");
    return now && now->beats > 2;
  });
}

TEST(RunLockTest, WhatIsNoLockFileIsNamed) {
  const TempDir dir;
  const auto message = [&dir] {
    try {
      const auto lock = RunLock::take(dir.path(), request());
    } catch (const Error& error) {
      return error.message();
    }
    return std::string();
  };
  fs::create_directory(dir / ".lock");
  EXPECT_NE(message().find(".lock' is not a regular file"), std::string::npos) << message();
  fs::remove(dir / ".lock");
  ASSERT_EQ(::mkfifo((dir / ".lock").c_str(), 0600), 0);
  EXPECT_NE(message().find(".lock' is not a regular file"), std::string::npos) << message();
  fs::remove(dir / ".lock");
  fs::create_symlink(dir / "elsewhere", dir / ".lock");
  EXPECT_NE(message().find(".lock' is not a regular file"), std::string::npos) << message();
  EXPECT_FALSE(fs::exists(dir / "elsewhere"));
}

TEST(LockOwnerTest, TextsOfOneOwnerAreOfOneLength) {
  LockOwner owner;
  owner.host = "node07";
  const std::string text = lock_text(owner);
  owner.beats = 1'000'000;
  EXPECT_EQ(lock_text(owner).size(), text.size());
  EXPECT_EQ(parse_lock(lock_text(owner)), owner);
  for (const char* wrong : {"", "{}", "[1]", "{\"token\": 3}", "{\"beats\": -1}", "garbage"})
    EXPECT_EQ(parse_lock(wrong), std::nullopt) << wrong;
  EXPECT_EQ(parse_lock(text.substr(0, 100)), std::nullopt);
}

}  // namespace
}  // namespace accel::ckpt
