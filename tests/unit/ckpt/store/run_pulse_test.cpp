#include "ckpt/store/run_pulse.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "ckpt/store/run_lock.hpp"
#include "temp_dir.hpp"

namespace accel::ckpt {
namespace {

using accel::testing::TempDir;
using accel::testing::write_file;
using std::chrono::milliseconds;

TEST(RunPulseTest, AnOwnerOnThisKernelLivesAsLongAsItHasTheLock) {
  const TempDir dir;
  RunPulse pulse(dir.path());
  EXPECT_FALSE(pulse.lives());
  auto lock = RunLock::take(dir.path(), {});
  EXPECT_TRUE(pulse.lives());
  const auto owner = read_lock(dir / ".lock");
  ASSERT_TRUE(owner);
  lock.reset();
  EXPECT_FALSE(pulse.lives());
  // What an owner leaves that was killed.
  write_file(dir / ".lock", lock_text(*owner));
  EXPECT_TRUE(owner->locked);
  EXPECT_FALSE(pulse.lives());
}

TEST(RunPulseTest, AnOwnerOnAnotherHostLivesAsLongAsItsBeatsGoOn) {
  const TempDir dir;
  LockOwner owner;
  owner.token = "t";
  owner.what = RunLock::kRun;
  owner.host = "another";
  owner.boot = "another kernel";
  owner.locked = true;
  owner.stale_after_s = 0.5;
  RunPulse pulse(dir.path());
  for (owner.beats = 1; owner.beats < 4; ++owner.beats) {
    write_file(dir / ".lock", lock_text(owner));
    EXPECT_TRUE(pulse.lives());
    std::this_thread::sleep_for(milliseconds(600));
  }
  EXPECT_FALSE(pulse.lives());
}

}  // namespace
}  // namespace accel::ckpt
