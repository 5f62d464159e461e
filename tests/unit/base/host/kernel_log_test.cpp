#include "base/host/kernel_log.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "temp_dir.hpp"

namespace accel {
namespace {

using accel::testing::TempDir;
using accel::testing::write_file;
using std::chrono::microseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr const char* kLog =
    "6,100,5000000,-;NVRM: Xid (PCI:0000:01:00): 31, pid=12, an error before the run\n"
    "6,101,5500000,-;eth0: link is up\n"
    " SUBSYSTEM=pci\n"
    "4,102,7000000,-;NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.\n"
    "4,103,7000001,c;NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.\n"
    "4,104,x,-;NVRM: Xid without a time\n"
    "NVRM: Xid that is no record\n"
    "4,105,8000000,-,caller=T1;NVRM: Xid (PCI:0000:02:00): 48, DBE\n";

TEST(KernelLogTest, GivesTheErrorsOfGpusSinceATime) {
  const TempDir dir;
  write_file(dir / "kmsg", kLog);
  EXPECT_THAT(gpu_errors_since(microseconds(6000000), dir / "kmsg"),
              ElementsAre("NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.",
                          "NVRM: Xid (PCI:0000:02:00): 48, DBE"));
  EXPECT_THAT(gpu_errors_since(microseconds(0), dir / "kmsg"), SizeIs(3));
  EXPECT_THAT(gpu_errors_since(microseconds(9000000), dir / "kmsg"), IsEmpty());
}

TEST(KernelLogTest, GivesAFewOfMany) {
  const TempDir dir;
  std::string log;
  for (int i = 0; i < 2000; ++i)
    log += "4," + std::to_string(i) + ",10,-;NVRM: Xid (PCI:0000:02:00): 31, pid=" + std::to_string(i) + "\n";
  write_file(dir / "kmsg", log);
  EXPECT_THAT(gpu_errors_since(microseconds(0), dir / "kmsg"), SizeIs(8));
}

TEST(KernelLogTest, ALogThatMayNotBeReadHasNone) {
  const TempDir dir;
  EXPECT_THAT(gpu_errors_since(microseconds(0), dir / "missing"), IsEmpty());
  EXPECT_THAT(gpu_errors_since(kernel_log_time()), IsEmpty());
}

}  // namespace
}  // namespace accel
