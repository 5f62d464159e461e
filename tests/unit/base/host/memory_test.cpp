#include "base/host/memory.hpp"

#include <gtest/gtest.h>

#include "temp_dir.hpp"

namespace accel {
namespace {

using accel::testing::TempDir;
using accel::testing::write_file;

/// The part of a machine's /proc and /sys that says how much memory there is.
class MemoryTest : public ::testing::Test {
 protected:
  void add(const std::string& path, std::string_view text) const {
    std::filesystem::create_directories((root_ / path).parent_path());
    write_file(root_ / path, text);
  }
  [[nodiscard]] std::uint64_t available() const { return available_memory_bytes(root_.path()); }

  TempDir root_;
};

TEST_F(MemoryTest, IsWhatTheSystemHasAvailable) {
  EXPECT_EQ(available(), 0U);
  add("proc/meminfo", "MemTotal:       16000 kB\nMemFree:         1000 kB\nMemAvailable:    9000 kB\n");
  EXPECT_EQ(available(), 9000U * 1024);
  EXPECT_GT(available_memory_bytes(), 0U);
}

TEST_F(MemoryTest, IsNoMoreThanTheControlGroupsHaveLeft) {
  add("proc/meminfo", "MemAvailable:    9000 kB\n");
  add("proc/self/cgroup", "0::/job/step\n");
  add("sys/fs/cgroup/job/step/memory.max", "max\n");
  add("sys/fs/cgroup/job/step/memory.current", "5000\n");
  EXPECT_EQ(available(), 9000U * 1024);
  add("sys/fs/cgroup/job/memory.max", "8000\n");
  add("sys/fs/cgroup/job/memory.current", "6000\n");
  EXPECT_EQ(available(), 2000U);
  // The page cache can be dropped.
  add("sys/fs/cgroup/job/memory.stat", "anon 4500\nfile 1600\ninactive_file 1500\n");
  EXPECT_EQ(available(), 3500U);
  add("sys/fs/cgroup/job/memory.current", "9000\n");
  EXPECT_EQ(available(), 500U);
}

TEST_F(MemoryTest, IsNoMoreThanTheControlGroupsOfVersion1HaveLeft) {
  add("proc/meminfo", "MemAvailable:    9000 kB\n");
  add("proc/self/cgroup", "5:cpu,cpuacct:/job\n4:memory:/job/step\n");
  add("sys/fs/cgroup/memory/job/step/memory.limit_in_bytes", "9223372036854771712\n");
  add("sys/fs/cgroup/memory/job/step/memory.usage_in_bytes", "5000\n");
  EXPECT_EQ(available(), 9000U * 1024);
  add("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "8000\n");
  add("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "6000\n");
  EXPECT_EQ(available(), 2000U);
  add("sys/fs/cgroup/memory/job/memory.stat", "inactive_file 100\ntotal_inactive_file 1500\n");
  EXPECT_EQ(available(), 3500U);
  // A container sees its own group as the root of the hierarchy, under another path.
  add("proc/self/cgroup", "4:memory:/docker/0123\n");
  add("sys/fs/cgroup/memory/memory.limit_in_bytes", "7000\n");
  add("sys/fs/cgroup/memory/memory.usage_in_bytes", "6500\n");
  EXPECT_EQ(available(), 500U);
}

TEST_F(MemoryTest, IsWhatTheMachineHasInTotal) {
  EXPECT_EQ(total_memory_bytes(root_.path()), 0U);
  add("proc/meminfo", "MemTotal:       16000 kB\nMemAvailable:    9000 kB\n");
  EXPECT_EQ(total_memory_bytes(root_.path()), 16000U * 1024);
}

TEST_F(MemoryTest, LimitIsTheLeastOfTheControlGroups) {
  add("proc/self/cgroup", "0::/job/step\n");
  add("sys/fs/cgroup/job/step/memory.max", "max\n");
  EXPECT_EQ(memory_limit_bytes(root_.path()), std::nullopt);
  add("sys/fs/cgroup/job/memory.max", "8000\n");
  EXPECT_EQ(memory_limit_bytes(root_.path()), 8000U);
  add("sys/fs/cgroup/memory.max", "9000\n");
  EXPECT_EQ(memory_limit_bytes(root_.path()), 8000U);
  add("sys/fs/cgroup/job/step/memory.max", "7000\n");
  EXPECT_EQ(memory_limit_bytes(root_.path()), 7000U);
}

TEST_F(MemoryTest, LimitOfVersion1) {
  add("proc/self/cgroup", "4:memory:/job\n3:cpuset:/other\n");
  add("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(memory_limit_bytes(root_.path()), std::nullopt);
  add("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "5000\n");
  EXPECT_EQ(memory_limit_bytes(root_.path()), 5000U);
}

}  // namespace
}  // namespace accel
