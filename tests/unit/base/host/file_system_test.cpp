#include "base/host/file_system.hpp"

#include <gtest/gtest.h>

namespace accel {
namespace {

TEST(FileSystemTest, MountOptionsTellHowFarALockReaches) {
  constexpr unsigned long kNfs = 0x6969;
  constexpr unsigned long kLustre = 0x0BD00BD0;
  constexpr unsigned long kFuse = 0x65735546;
  constexpr unsigned long kExt4 = 0xEF53;
  EXPECT_EQ(lock_reach(kExt4, "rw"), LockReach::kOneHost);
  EXPECT_EQ(lock_reach(kNfs, "rw,vers=4.2,local_lock=none,addr=10.0.0.1"), LockReach::kAllHosts);
  EXPECT_EQ(lock_reach(kNfs, "rw,vers=3,local_lock=flock"), LockReach::kAllHosts);
  EXPECT_EQ(lock_reach(kNfs, "rw,vers=3,nolock,local_lock=all"), LockReach::kUnknown);
  EXPECT_EQ(lock_reach(kNfs, "rw,vers=3,local_lock=posix"), LockReach::kUnknown);
  EXPECT_EQ(lock_reach(kLustre, "rw,flock,lazystatfs"), LockReach::kAllHosts);
  EXPECT_EQ(lock_reach(kLustre, "rw,localflock,lazystatfs"), LockReach::kUnknown);
  EXPECT_EQ(lock_reach(kLustre, "rw,lazystatfs"), LockReach::kUnknown);
  EXPECT_EQ(lock_reach(kFuse, "rw,user_id=0"), LockReach::kUnknown);
}

TEST(FileSystemTest, TheKernelNamesTheFileSystem) {
  EXPECT_EQ(file_system_of("/proc").type, "proc");
  EXPECT_EQ(file_system_of("/nowhere").type, "unknown");
}

TEST(FileSystemTest, OneThatStatesNoSizeIsNotFull) {
  EXPECT_GT(free_bytes("/tmp"), 0U);
  EXPECT_EQ(free_bytes("/proc"), std::nullopt);
  EXPECT_EQ(free_bytes("/nowhere"), std::nullopt);
}

}  // namespace
}  // namespace accel
