#include "core/launch/machine.hpp"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>

#include "../temp_dir.hpp"
#include "core/launch/fd.hpp"

namespace accel::core {
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
  cpu_set_t allowed;
  ASSERT_EQ(::sched_getaffinity(0, sizeof allowed, &allowed), 0);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    const auto folder = root / ("sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology");
    std::filesystem::create_directories(folder);
    write_file(folder / "thread_siblings_list", "0-1023\n");
  }
  EXPECT_EQ(physical_cores(root.path()), 1);
  EXPECT_GE(physical_cores(), 1);
}

TEST(MachineTest, APortInUseIsNotFree) {
  const int port = free_port();
  EXPECT_TRUE(port_is_free(port));
  for (const int family : {AF_INET, AF_INET6}) {
    const Fd fd(::socket(family, SOCK_STREAM, 0));
    if (!fd) continue;
    sockaddr_in6 address{};
    address.sin6_family = static_cast<sa_family_t>(family);
    address.sin6_port = htons(static_cast<std::uint16_t>(port));
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    ASSERT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    ASSERT_EQ(::listen(fd.get(), 1), 0);
    EXPECT_FALSE(port_is_free(port)) << family;
  }
  EXPECT_TRUE(port_is_free(port));
}

TEST(MachineTest, HasAName) { EXPECT_FALSE(host_name().empty()); }

}  // namespace
}  // namespace accel::core
