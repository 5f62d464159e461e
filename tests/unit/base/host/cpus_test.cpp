#include "base/host/cpus.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <thread>

#include "temp_dir.hpp"

namespace accel {
namespace {

using accel::testing::TempDir;
using accel::testing::write_file;

/// The part of a machine's /proc and /sys that describes control groups.
class CpuQuotaTest : public ::testing::Test {
 protected:
  void add(const std::string& path, std::string_view text) const {
    std::filesystem::create_directories((root_ / path).parent_path());
    write_file(root_ / path, text);
  }
  [[nodiscard]] double quota() const { return cpu_quota(root_.path()).value_or(-1); }

  TempDir root_;
};

TEST(CpusTest, AllowedCpusAreThoseOfTheAffinity) {
  const std::vector<int> all = allowed_cpus();
  ASSERT_FALSE(all.empty());
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end()));
  std::vector<int> seen;
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(all.back(), &one);
    if (::sched_setaffinity(0, sizeof one, &one) == 0) seen = allowed_cpus();
  }).join();
  EXPECT_EQ(seen, std::vector<int>{all.back()});
}

TEST_F(CpuQuotaTest, WithoutGroupsThereIsNone) { EXPECT_EQ(quota(), -1); }

TEST_F(CpuQuotaTest, Version2) {
  add("proc/self/cgroup", "0::/job/step\n");
  add("sys/fs/cgroup/job/step/cpu.max", "max 100000\n");
  EXPECT_EQ(quota(), -1);
  add("sys/fs/cgroup/job/step/cpu.max", "150000 100000\n");
  EXPECT_EQ(quota(), 1.5);
}

TEST_F(CpuQuotaTest, TheLeastOfAllGroupsAboveCounts) {
  add("proc/self/cgroup", "0::/job/step\n");
  add("sys/fs/cgroup/job/step/cpu.max", "800000 100000\n");
  add("sys/fs/cgroup/job/cpu.max", "250000 100000\n");
  add("sys/fs/cgroup/cpu.max", "400000 100000\n");
  EXPECT_EQ(quota(), 2.5);
}

TEST_F(CpuQuotaTest, AContainerThatSeesThePathOfTheHost) {
  add("proc/self/cgroup", "0::/system.slice/docker-4f.scope\n");
  add("sys/fs/cgroup/cpu.max", "200000 100000\n");
  EXPECT_EQ(quota(), 2);
}

TEST_F(CpuQuotaTest, Version1) {
  add("proc/self/cgroup", "4:memory:/m\n3:cpu,cpuacct:/docker/4f\n2:cpuset:/\n0::/\n");
  add("sys/fs/cgroup/cpu,cpuacct/docker/4f/cpu.cfs_quota_us", "-1\n");
  add("sys/fs/cgroup/cpu,cpuacct/docker/4f/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), -1);
  add("sys/fs/cgroup/cpu,cpuacct/docker/4f/cpu.cfs_quota_us", "300000\n");
  EXPECT_EQ(quota(), 3);
  add("proc/self/cgroup", "1:cpu:/\n");
  add("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n");
  add("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), 0.5);
}

TEST_F(CpuQuotaTest, WhatIsNoNumberIsNoLimit) {
  add("proc/self/cgroup", "garbage\n0::/\n");
  add("sys/fs/cgroup/cpu.max", "many few\n");
  EXPECT_EQ(quota(), -1);
}

TEST_F(CpuQuotaTest, WholeCpusAreUsableAndAtLeastOne) {
  const auto allowed = static_cast<unsigned>(allowed_cpus().size());
  EXPECT_EQ(usable_cpus(root_.path()), allowed);
  add("proc/self/cgroup", "0::/\n");
  add("sys/fs/cgroup/cpu.max", "190000 100000\n");
  EXPECT_EQ(usable_cpus(root_.path()), 1U);
  add("sys/fs/cgroup/cpu.max", "10000 100000\n");
  EXPECT_EQ(usable_cpus(root_.path()), 1U);
  add("sys/fs/cgroup/cpu.max", "200000000 100000\n");
  EXPECT_EQ(usable_cpus(root_.path()), allowed);
}

}  // namespace
}  // namespace accel
