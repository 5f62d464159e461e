#include "core/launch/world/affinity.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "temp_dir.hpp"

namespace accel::launch {
namespace {

using accel::testing::TempDir;
using accel::testing::write_file;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// A machine of two nodes, each with `cores` cores of two hyperthreads: core i has the CPUs i and i + 2 *
/// cores.
class AffinityTest : public ::testing::Test {
 protected:
  void make(int cores) {
    for (const int node : {0, 1}) {
      const auto folder = root_ / ("sys/devices/system/node/node" + std::to_string(node));
      std::filesystem::create_directories(folder);
      const int first = node * cores;
      write_file(folder / "cpulist", std::to_string(first) + "-" + std::to_string(first + cores - 1) + "," +
                                         std::to_string(first + 2 * cores) + "-" +
                                         std::to_string(first + 3 * cores - 1) + "\n");
    }
    for (int cpu = 0; cpu < 4 * cores; ++cpu) {
      const auto folder = root_ / ("sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology");
      std::filesystem::create_directories(folder);
      const int core = cpu % (2 * cores);
      write_file(folder / "thread_siblings_list",
                 std::to_string(core) + "," + std::to_string(core + 2 * cores) + "\n");
    }
    allowed_.resize(static_cast<std::size_t>(4 * cores));
    std::iota(allowed_.begin(), allowed_.end(), 0);
  }

  std::vector<std::vector<int>> cpus(int ranks, std::vector<int> gpus = {},
                                     std::optional<std::string> visible = {}) const {
    config::LaunchConfig launch;
    launch.local_processes = ranks;
    launch.use_cpu = gpus.empty();
    launch.gpu_ids = std::move(gpus);
    return cpus_of_ranks(
        launch, allowed_, [&](const std::string&) { return visible; }, root_.path());
  }

  TempDir root_;
  std::vector<int> allowed_;
};

TEST_F(AffinityTest, RanksGetWholeCoresOfOneNode) {
  make(2);
  EXPECT_THAT(cpus(2), ElementsAre(ElementsAre(0, 4, 1, 5), ElementsAre(2, 6, 3, 7)));
  EXPECT_THAT(cpus(4),
              ElementsAre(ElementsAre(0, 4), ElementsAre(1, 5), ElementsAre(2, 6), ElementsAre(3, 7)));
  EXPECT_THAT(cpus(3), ElementsAre(ElementsAre(0, 4), ElementsAre(1, 5), ElementsAre(2, 6, 3, 7)));
}

TEST_F(AffinityTest, OnlyAllowedCpusAreGiven) {
  make(2);
  allowed_ = {1, 3, 5};
  EXPECT_THAT(cpus(2), ElementsAre(ElementsAre(1, 5), ElementsAre(3)));
  EXPECT_THAT(cpus(3), ElementsAre(IsEmpty(), IsEmpty(), IsEmpty()));  // More ranks than cores.
}

TEST_F(AffinityTest, ARankOnAGpuGetsTheNodeOfTheGpu) {
  make(2);
  const std::pair<const char*, const char*> gpus[] = {
      {"0000:01:00.0", "0"}, {"0000:02:00.0", "1"}, {"0000:03:00.0", "-1"}};
  for (const auto& [bus, node] : gpus) {
    std::filesystem::create_directories(root_ / "proc/driver/nvidia/gpus" / bus);
    std::filesystem::create_directories(root_ / "sys/bus/pci/devices" / bus);
    write_file(root_ / "sys/bus/pci/devices" / bus / "numa_node", std::string(node) + "\n");
  }
  EXPECT_THAT(cpus(3, {0, 1, 2}), ElementsAre(ElementsAre(0, 1, 4, 5), ElementsAre(2, 3, 6, 7), IsEmpty()));
  EXPECT_THAT(cpus(1, {0}, "1,0"), ElementsAre(ElementsAre(2, 3, 6, 7)));
  EXPECT_THAT(cpus(1, {0}, "GPU-1f"), ElementsAre(IsEmpty()));
}

TEST_F(AffinityTest, WithoutTheKernelsFilesEveryCpuIsACore) {
  allowed_ = {0, 1, 2, 3};
  EXPECT_THAT(cpus(2), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
}

}  // namespace
}  // namespace accel::launch
