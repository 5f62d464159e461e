#include "base/host/kernel_log.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "temp_dir.hpp"

namespace accel {
namespace {

using accel::testing::TempDir;
using accel::testing::write_file;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(KernelLogTest, GivesTheErrorsOfGpusThatCome) {
  const TempDir dir;
  write_file(dir / "kmsg",
             "6,100,5000000,-;NVRM: Xid (PCI:0000:01:00): 31, pid=12, an error before the run\n");
  GpuErrorLog log(dir / "kmsg");
  EXPECT_THAT(log.news(), IsEmpty());
  std::ofstream(dir / "kmsg", std::ios::app)
      << "6,101,5500000,-;eth0: link is up\n"
         " SUBSYSTEM=pci\n"
         "4,102,7000000,-;NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.\n"
         "4,103,7000001,c;NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.\n"
         "NVRM: Xid that is no record\n"
         "4,105,8000000,-,caller=T1;NVRM: Xid (PCI:0000:02:00): 48, DBE\n";
  EXPECT_THAT(log.news(), ElementsAre("NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.",
                                      "NVRM: Xid (PCI:0000:02:00): 48, DBE"));
  EXPECT_THAT(log.news(), IsEmpty());
}

TEST(KernelLogTest, GivesAFewOfMany) {
  const TempDir dir;
  write_file(dir / "kmsg", "");
  GpuErrorLog log(dir / "kmsg");
  std::ofstream file(dir / "kmsg");
  for (int i = 0; i < 2000; ++i)
    file << "4," << i << ",10,-;NVRM: Xid (PCI:0000:02:00): 31, pid=" << i << '\n';
  file.close();
  EXPECT_THAT(log.news(), SizeIs(8));
}

TEST(KernelLogTest, ALogThatMayNotBeReadHasNone) {
  const TempDir dir;
  EXPECT_THAT(GpuErrorLog(dir / "missing").news(), IsEmpty());
  EXPECT_THAT(GpuErrorLog().news(), IsEmpty());
}

}  // namespace
}  // namespace accel
