#include "core/launch/world/machine.hpp"

#include <gtest/gtest.h>

#include "base/host/cpus.hpp"
#include "temp_dir.hpp"

namespace accel::launch {
namespace {

using accel::testing::TempDir;
using accel::testing::write_file;

Environment cuda_visible_devices(std::optional<std::string> value) {
  return [value](const std::string&) { return value; };
}

TEST(MachineTest, CountsGpusThatTheDriverLists) {
  const TempDir root;
  EXPECT_EQ(visible_gpus(cuda_visible_devices({}), root.path()), 0);
  for (const char* name : {"0000:01:00.0", "0000:02:00.0", "0000:03:00.0"}) {
    std::filesystem::create_directories(root / "proc/driver/nvidia/gpus" / name);
  }
  EXPECT_EQ(visible_gpus(cuda_visible_devices({}), root.path()), 3);
}

TEST(MachineTest, CountsDeviceFilesWhereTheDriverHasNoProc) {
  const TempDir root;
  std::filesystem::create_directories(root / "dev");
  for (const char* name : {"nvidia0", "nvidia1", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia", "null"}) {
    write_file(root / "dev" / name, "");
  }
  EXPECT_EQ(visible_gpus(cuda_visible_devices({}), root.path()), 3);
}

TEST(MachineTest, CudaVisibleDevicesLimits) {
  const TempDir root;
  for (const char* name : {"a", "b", "c", "d"}) {
    std::filesystem::create_directories(root / "proc/driver/nvidia/gpus" / name);
  }
  const std::pair<const char*, int> rows[] = {{"", 0},         {"0", 1},  {"2,3", 2},  {"GPU-1f,MIG-2", 2},
                                              {"1,-1,2", 1},   {"-1", 0}, {"0, 1", 2}, {"none", 0},
                                              {"0,1,2,3,4", 4}};
  for (const auto& [value, count] : rows)
    EXPECT_EQ(visible_gpus(cuda_visible_devices(value), root.path()), count) << value;
}

TEST(MachineTest, CountsHyperthreadsOnce) {
  const TempDir root;
  for (const int cpu : allowed_cpus()) {
    const auto folder = root / ("sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology");
    std::filesystem::create_directories(folder);
    write_file(folder / "thread_siblings_list", "0-1023\n");
  }
  EXPECT_EQ(physical_cores(root.path()), 1);
  EXPECT_GE(physical_cores(), 1);
}

TEST(MachineTest, AQuotaLimitsTheCores) {
  const TempDir root;
  EXPECT_EQ(physical_cores(root.path()), static_cast<int>(allowed_cpus().size()));
  std::filesystem::create_directories(root / "proc/self");
  std::filesystem::create_directories(root / "sys/fs/cgroup/job");
  write_file(root / "proc/self/cgroup", "0::/job\n");
  write_file(root / "sys/fs/cgroup/job/cpu.max", "100000 100000\n");
  EXPECT_EQ(physical_cores(root.path()), 1);
}

}  // namespace
}  // namespace accel::launch
