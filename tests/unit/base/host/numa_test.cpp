#include "base/host/numa.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "temp_dir.hpp"

namespace accel {
namespace {

using accel::testing::TempDir;
using accel::testing::write_file;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(NumaTest, ReadsAListOfCpus) {
  const TempDir dir;
  write_file(dir / "list", "0-2,8,10-11\n");
  EXPECT_THAT(listed_cpus(dir / "list"), ElementsAre(0, 1, 2, 8, 10, 11));
  write_file(dir / "list", "1,x,2-y,3\n");
  EXPECT_THAT(listed_cpus(dir / "list"), ElementsAre(1, 3));
  EXPECT_THAT(listed_cpus(dir / "none"), IsEmpty());
}

TEST(NumaTest, WritesAListOfCpus) {
  EXPECT_EQ(list_of_cpus({0, 1, 2, 8, 10, 11}), "0-2,8,10-11");
  EXPECT_EQ(list_of_cpus({5}), "5");
  EXPECT_EQ(list_of_cpus({}), "");
}

TEST(NumaTest, FindsTheNodeOfEachCpu) {
  const TempDir root;
  EXPECT_THAT(nodes_of_cpus(root.path()), IsEmpty());
  for (const auto& [node, cpus] : {std::pair("node0", "0,2\n"), std::pair("node1", "1\n")}) {
    const auto folder = root / "sys/devices/system/node" / node;
    std::filesystem::create_directories(folder);
    write_file(folder / "cpulist", cpus);
  }
  std::filesystem::create_directories(root / "sys/devices/system/node/power");
  EXPECT_THAT(nodes_of_cpus(root.path()), ElementsAre(Pair(0, 0), Pair(1, 1), Pair(2, 0)));
}

}  // namespace
}  // namespace accel
