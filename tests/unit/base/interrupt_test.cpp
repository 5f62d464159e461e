#include "base/interrupt.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include "base/error.hpp"
#include "base/files/atomic_file.hpp"
#include "temp_dir.hpp"

namespace accel {
namespace {

ErrorKind kind_after(int signal) {
  const InterruptGuard guard;
  EXPECT_NO_THROW(check_interrupted());
  ::raise(signal);
  try {
    check_interrupted();
  } catch (const Error& error) {
    return error.kind();
  }
  return ErrorKind::kFailure;
}

TEST(InterruptTest, SaysWhichSignalCame) {
  // Under nohup SIGHUP is ignored, and stays ignored.
  const auto before = std::signal(SIGHUP, SIG_DFL);
  EXPECT_EQ(kind_after(SIGINT), ErrorKind::kInterrupted);
  EXPECT_EQ(kind_after(SIGTERM), ErrorKind::kTerminated);
  EXPECT_EQ(kind_after(SIGHUP), ErrorKind::kHungUp);
  EXPECT_EQ(kind_after(SIGUSR1), ErrorKind::kUserSignal1);
  EXPECT_EQ(kind_after(SIGUSR2), ErrorKind::kUserSignal2);
  EXPECT_NO_THROW(check_interrupted());
  std::signal(SIGHUP, before);
}

// The signal that ends a child which runs `action`; 0 if it exits.
template <class Action>
int signal_of(const Action& action) {
  const pid_t child = ::fork();
  if (child == 0) {
    action();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

TEST(InterruptTest, TheSecondSignalKills) {
  EXPECT_EQ(signal_of([] {
              const InterruptGuard guard;
              ::raise(SIGINT);
              ::raise(SIGTERM);
            }),
            SIGTERM);
}

TEST(InterruptTest, GivesTheOldHandlersBack) {
  EXPECT_EQ(signal_of([] {
              { const InterruptGuard guard; }
              ::raise(SIGINT);
            }),
            SIGINT);
}

TEST(InterruptTest, AnIgnoredSignalStaysIgnored) {
  EXPECT_EQ(signal_of([] {
              ::signal(SIGHUP, SIG_IGN);
              const InterruptGuard guard;
              ::raise(SIGHUP);
              check_interrupted();
            }),
            0);
}

TEST(InterruptTest, AnAtomicFileIsNotCommitted) {
  const testing::TempDir dir;
  const InterruptGuard guard;
  {
    AtomicFile file(dir / "out", AtomicFile::Existing::kReplace);
    file.append("text");
    ::raise(SIGINT);
    EXPECT_THROW(file.append("more"), Error);
    EXPECT_THROW(file.commit(), Error);
  }
  EXPECT_TRUE(testing::names_in(dir.path()).empty());
}

}  // namespace
}  // namespace accel
