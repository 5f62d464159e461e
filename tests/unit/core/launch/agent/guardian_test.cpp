#include "core/launch/agent/guardian.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace accel::launch {
namespace {

/// How many descriptors but one, and whether that one, close_all_but() leaves open in a child process.
/// `may_open` is whether it may open another one to see which there are.
int left_open(bool may_open) {
  const Fd kept(::open("/dev/null", O_RDONLY));
  const Fd low(::dup(kept.get()));
  const Fd high(::fcntl(kept.get(), F_DUPFD, 200));
  const pid_t child = ::fork();
  if (child == 0) {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 0;
    if (!may_open && ::setrlimit(RLIMIT_NOFILE, &limit) != 0) ::_exit(100);
    close_all_but(kept.get());
    int left = ::fcntl(kept.get(), F_GETFD) < 0 ? 50 : 0;
    for (const int fd : {0, 1, 2, low.get(), high.get()}) left += ::fcntl(fd, F_GETFD) < 0 ? 0 : 1;
    ::_exit(left);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

TEST(GuardianTest, ClosesAllDescriptorsButItsOwn) { EXPECT_EQ(left_open(true), 0); }

TEST(GuardianTest, ClosesThemWithoutALookAtProc) { EXPECT_EQ(left_open(false), 0); }

}  // namespace
}  // namespace accel::launch
