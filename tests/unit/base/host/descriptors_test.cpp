#include "base/host/descriptors.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <limits>

#include "base/files/fd.hpp"

namespace accel {
namespace {

/// Gives the limit back as it was.
class DescriptorsTest : public ::testing::Test {
 protected:
  DescriptorsTest() { ::getrlimit(RLIMIT_NOFILE, &before_); }
  ~DescriptorsTest() override { ::setrlimit(RLIMIT_NOFILE, &before_); }

  static rlim_t soft_limit() {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    return limit.rlim_cur;
  }
  void set_soft_limit(std::size_t descriptors) const {
    const rlimit limit{descriptors, before_.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  }

  rlimit before_{};
};

TEST_F(DescriptorsTest, CountsWhatIsOpen) {
  const std::size_t before = open_descriptors();
  const Fd one(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(open_descriptors(), before + 1);
}

TEST_F(DescriptorsTest, RaisesTheSoftLimitAsFarAsNeeded) {
  const std::size_t open = open_descriptors();
  set_soft_limit(open + 5);
  EXPECT_EQ(allow_descriptors(20), 20U);
  EXPECT_EQ(soft_limit(), open + 20);
}

TEST_F(DescriptorsTest, DoesNotLowerTheLimit) {
  const std::size_t open = open_descriptors();
  set_soft_limit(open + 20);
  EXPECT_EQ(allow_descriptors(5), 20U);
  EXPECT_EQ(soft_limit(), open + 20);
}

TEST_F(DescriptorsTest, TheHardLimitHolds) {
  const std::size_t open = open_descriptors();
  EXPECT_EQ(allow_descriptors(std::numeric_limits<std::size_t>::max() / 2), before_.rlim_max - open);
  EXPECT_EQ(soft_limit(), before_.rlim_max);
}

}  // namespace
}  // namespace accel
