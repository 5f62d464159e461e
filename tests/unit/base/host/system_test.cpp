#include "base/host/system.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "temp_dir.hpp"

namespace accel {
namespace {

using accel::testing::TempDir;
using accel::testing::write_file;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;

class SystemTest : public ::testing::Test {
 protected:
  void add(const std::string& path, std::string_view text) const {
    std::filesystem::create_directories((root_ / path).parent_path());
    write_file(root_ / path, text);
  }

  TempDir root_;
};

TEST_F(SystemTest, NamesTheKernel) { EXPECT_THAT(kernel_name(), MatchesRegex("Linux [^ ]+ [^ ]+")); }

TEST_F(SystemTest, NamesTheDistribution) {
  EXPECT_EQ(distribution_name(root_.path()), "");
  add("usr/lib/os-release", "NAME=Other\nPRETTY_NAME='Other Linux 3'\n");
  EXPECT_EQ(distribution_name(root_.path()), "Other Linux 3");
  add("etc/os-release", "ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n");
  EXPECT_EQ(distribution_name(root_.path()), "Debian GNU/Linux 12 (bookworm)");
  add("etc/os-release", "PRETTY_NAME=Plain\n");
  EXPECT_EQ(distribution_name(root_.path()), "Plain");
}

TEST_F(SystemTest, ReadsTheFirstProcessor) {
  EXPECT_EQ(processor(root_.path()).model, "");
  add("proc/cpuinfo",
      "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu avx f16c avx2 fma sse\n\n"
      "processor\t: 1\nmodel name\t: Another\nflags\t\t: avx512f\n");
  const Processor x86 = processor(root_.path());
  EXPECT_EQ(x86.model, "Some CPU @ 2 GHz");
  EXPECT_THAT(x86.features, ElementsAre("avx2", "fma", "f16c"));
}

TEST_F(SystemTest, ReadsAProcessorWithoutAName) {
  add("proc/cpuinfo", "processor\t: 0\nFeatures\t: fp asimd sve bf16\nCPU implementer\t: 0x41\n\n");
  const Processor arm = processor(root_.path());
  EXPECT_THAT(arm.model, IsEmpty());
  EXPECT_THAT(arm.features, ElementsAre("asimd", "bf16", "sve"));
}

}  // namespace
}  // namespace accel
