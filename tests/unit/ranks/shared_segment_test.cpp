#include "ranks/shared_segment.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

#include "base/error.hpp"
#include "base/files/fd.hpp"
#include "ranks/shm_ranks.hpp"

namespace accel {
namespace {

bool is_mapped_here() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("accel-ranks") != std::string::npos) return true;
  }
  return false;
}

TEST(SharedSegmentTest, IsTheSameMemoryInAnotherProcess) {
  const SharedSegment segment = SharedSegment::create(10'000);
  EXPECT_GE(segment.bytes().size(), 10'000U);
  EXPECT_TRUE(std::ranges::all_of(segment.bytes(), [](std::byte byte) { return byte == std::byte{0}; }));
  const std::string address = segment.address();
  const pid_t child = ::fork();
  if (child == 0) {
    const SharedSegment other = SharedSegment::open(address);
    other.bytes()[9'999] = std::byte{7};
    ::_exit(other.bytes().size() == segment.bytes().size() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(segment.bytes()[9'999], std::byte{7});
}

TEST(SharedSegmentTest, LivesAsLongAsSomeoneHasIt) {
  std::optional<SharedSegment> first = SharedSegment::create(100);
  {
    const SharedSegment second = SharedSegment::open(first->address());
    first.reset();
    second.bytes()[0] = std::byte{1};
    EXPECT_EQ(second.bytes()[0], std::byte{1});
    EXPECT_TRUE(is_mapped_here());
  }
  EXPECT_FALSE(is_mapped_here());
}

TEST(SharedSegmentTest, CannotBeOpenedOnceItsAddressIsClosed) {
  SharedSegment segment = SharedSegment::create(100);
  const std::string address = segment.address();
  segment.close_address();
  EXPECT_NE(error_of([&] { SharedSegment::open(address); }), "nothing");
}

TEST(SharedSegmentTest, RefusesWhatIsNotTheSegmentMeant) {
  const SharedSegment segment = SharedSegment::create(100);
  const std::string address = segment.address();
  std::string other_token = address;
  other_token.back() = other_token.back() == '0' ? '1' : '0';
  EXPECT_NE(error_of([&] { SharedSegment::open(other_token); }).find("is not the memory that process"),
            std::string::npos);
  const Fd null(::open("/dev/null", O_RDWR));
  EXPECT_NE(error_of([&] {
              SharedSegment::open(fmt::format("{} {} 8192 0", ::getpid(), null.get()));
            }).find("is not the memory that process"),
            std::string::npos);
  const Fd longer(::memfd_create("longer", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(longer.get(), 4096), 0);
  EXPECT_NE(error_of([&] {
              SharedSegment::open(fmt::format("{} {} 8192 0", ::getpid(), longer.get()));
            }).find("is not the memory that process"),
            std::string::npos);
  EXPECT_EQ(error_of([&] { SharedSegment::open("nonsense"); }),
            "'nonsense' is not an address of shared memory");
}

TEST(SharedSegmentTest, CannotBeMadeShorterByAnyone) {
  const SharedSegment segment = SharedSegment::create(100);
  const std::string address = segment.address();
  int pid = 0;
  int number = 0;
  ASSERT_EQ(std::sscanf(address.c_str(), "%d %d", &pid, &number), 2);
  EXPECT_NE(::ftruncate(number, 0), 0);
}

}  // namespace
}  // namespace accel
