#include "ckpt/io/copy_range.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::error_of;
using testing::pattern;
using testing::read_file;
using testing::TempDir;
using testing::write_file;

TEST(RangeCopierTest, CopiesRangesAndTellsOfAll) {
  const TempDir dir;
  const std::string data = pattern(100'000, 5);
  write_file(dir / "from", data);
  const File from = File::open_read(dir / "from");
  File to = File::create_new(dir / "to");
  std::vector<std::byte> buffer(1000);
  std::uint64_t told = 0;
  RangeCopier copier(to, buffer, [&](std::uint64_t bytes) { told += bytes; });
  copier.copy(from, 10'000, 5, 90'000);
  copier.copy(from, 0, 0, 5);
  EXPECT_EQ(read_file(dir / "to"), data.substr(0, 5) + data.substr(10'000));
  EXPECT_EQ(told, 90'005U);
}

TEST(RangeCopierTest, WorksBetweenFilesThatTheKernelCannotCopy) {
  const TempDir dir;
  // Files of /proc have no size and cannot be copied in the kernel; they can be read.
  const File from = File::open_read("/proc/self/maps");
  File to = File::create_new(dir / "to");
  std::vector<std::byte> buffer(16);
  RangeCopier(to, buffer, [](std::uint64_t) {}).copy(from, 0, 0, 48);
  EXPECT_EQ(to.size(), 48U);
}

TEST(RangeCopierTest, ASourceThatEndsEarlyIsCorrupt) {
  const TempDir dir;
  write_file(dir / "from", "12345");
  const File from = File::open_read(dir / "from");
  File to = File::create_new(dir / "to");
  std::vector<std::byte> buffer(16);
  RangeCopier copier(to, buffer, [](std::uint64_t) {});
  (void)error_of(ErrorKind::kCorrupt, [&] { copier.copy(from, 0, 0, 6); });
}

}  // namespace
}  // namespace accel::ckpt
