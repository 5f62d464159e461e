#include "core/machine/gpus.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "temp_dir.hpp"

namespace accel::machine {
namespace {

using accel::testing::TempDir;
using accel::testing::write_file;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class GpusTest : public ::testing::Test {
 protected:
  void add(const std::string& path, std::string_view text) const {
    std::filesystem::create_directories((root_ / path).parent_path());
    write_file(root_ / path, text);
  }

  TempDir root_;
};

TEST_F(GpusTest, OfAMachineWithoutADriver) {
  const Gpus none = gpus_of_driver(root_.path());
  EXPECT_THAT(none.gpus, IsEmpty());
  EXPECT_EQ(none.driver, "");
}

TEST_F(GpusTest, OfTheDriver) {
  add("proc/driver/nvidia/version",
      "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n"
      "GCC version:  gcc version 12.2.0\n");
  add("proc/driver/nvidia/gpus/0000:81:00.0/information", "Model: \t\t NVIDIA L4\nIRQ:   \t\t 7\n");
  add("proc/driver/nvidia/gpus/0000:41:00.0/information", "Model: \t\t NVIDIA H100 80GB HBM3\n");
  const Gpus two = gpus_of_driver(root_.path());
  ASSERT_THAT(two.gpus, SizeIs(2));
  EXPECT_EQ(two.gpus[0].name, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(two.gpus[1].name, "NVIDIA L4");
  EXPECT_EQ(two.gpus[0].memory_bytes, std::nullopt);
  EXPECT_EQ(two.driver, "535.129.03");
}

TEST_F(GpusTest, VersionOfTheOpenDriver) {
  add("proc/driver/nvidia/version",
      "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (builder)\n");
  EXPECT_EQ(gpus_of_driver(root_.path()).driver, "570.86.15");
}

TEST_F(GpusTest, VersionOfTheModule) {
  add("sys/module/nvidia/version", "550.54.15\n");
  EXPECT_EQ(gpus_of_driver(root_.path()).driver, "550.54.15");
}

TEST_F(GpusTest, OfNvidiaSmi) {
  const Gpus two =
      parse_nvidia_smi("NVIDIA H100 80GB HBM3, 81559, 535.129.03\nNVIDIA GB10, [N/A], 535.129.03\n");
  ASSERT_THAT(two.gpus, SizeIs(2));
  EXPECT_EQ(two.gpus[0].name, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(two.gpus[0].memory_bytes, std::uint64_t{81559} << 20);
  EXPECT_EQ(two.gpus[1].memory_bytes, std::nullopt);
  EXPECT_EQ(two.driver, "535.129.03");
}

TEST_F(GpusTest, NotOfWhatNvidiaSmiSaysOtherwise) {
  for (const char* text : {"", "NVIDIA-SMI has failed, because it could not, communicate.\n", "a, 1\n"})
    EXPECT_THAT(parse_nvidia_smi(text).gpus, IsEmpty()) << text;
}

// CUDA numbers the devices of the variable from 0.
TEST_F(GpusTest, NamesTheGpusOfTheRanks) {
  const auto names = [](std::optional<std::string> visible, const std::vector<int>& gpu_ids) {
    return names_for_nvidia_smi([=](const std::string&) { return visible; }, gpu_ids);
  };
  EXPECT_EQ(names(std::nullopt, {}), "");
  EXPECT_EQ(names(std::nullopt, {1, 3}), "1,3");
  EXPECT_EQ(names("5,GPU-a1, 2", {}), "5,GPU-a1, 2");
  EXPECT_EQ(names("5,GPU-a1, 2", {2, 0}), "2,5");
  EXPECT_EQ(names("5,GPU-a1", {1}), "GPU-a1");
}

TEST_F(GpusTest, TheLeastComputeCapabilityCounts) {
  EXPECT_EQ(parse_compute_capability("9.0\n8.6\n8.9\n"), 8.6);
  EXPECT_EQ(parse_compute_capability("12.0\n"), 12.0);
  for (const char* text : {"", "Field \"compute_cap\" is not a valid field to query.\n", "9.0\n[N/A]\n"})
    EXPECT_EQ(parse_compute_capability(text), std::nullopt) << text;
}

}  // namespace
}  // namespace accel::machine
