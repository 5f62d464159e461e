#include "base/host/process_state.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <functional>

namespace accel {
namespace {

/// Whether `check` holds in a child process, whose state it may change.
bool in_child(const std::function<bool()>& check) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(check() ? 0 : 1);
  int status = -1;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool is_ignored(int signal) {
  struct sigaction action {};
  ::sigaction(signal, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

bool is_blocked(int signal) {
  sigset_t mask;
  ::sigprocmask(SIG_BLOCK, nullptr, &mask);
  return ::sigismember(&mask, signal) == 1;
}

TEST(ProcessStateTest, IgnoredSignalsGetTheirDefaults) {
  for (const int signal : {SIGCHLD, SIGPIPE, SIGTERM, SIGUSR1, SIGALRM, SIGRTMIN}) {
    EXPECT_TRUE(in_child([signal] {
      ::signal(signal, SIG_IGN);
      reset_process_state();
      return !is_ignored(signal);
    })) << signal;
  }
}

TEST(ProcessStateTest, WhatNohupAndBackgroundJobsIgnoreStaysIgnored) {
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT}) {
    EXPECT_TRUE(in_child([signal] {
      ::signal(signal, SIG_IGN);
      reset_process_state();
      return is_ignored(signal);
    })) << signal;
    EXPECT_TRUE(in_child([signal] {
      ::signal(signal, SIG_DFL);
      reset_process_state();
      return !is_ignored(signal);
    })) << signal;
  }
}

TEST(ProcessStateTest, NoSignalStaysBlocked) {
  EXPECT_TRUE(in_child([] {
    sigset_t all;
    ::sigfillset(&all);
    ::sigprocmask(SIG_SETMASK, &all, nullptr);
    reset_process_state();
    return !is_blocked(SIGTERM) && !is_blocked(SIGCHLD) && !is_blocked(SIGRTMAX);
  }));
}

TEST(ProcessStateTest, AFileThatMayNotGrowIsAnErrorOfTheWrite) {
  EXPECT_TRUE(in_child([] {
    ::signal(SIGXFSZ, SIG_DFL);
    reset_process_state();
    return is_ignored(SIGXFSZ);
  }));
  EXPECT_TRUE(in_child([] {  // Children expect the default disposition.
    ::signal(SIGXFSZ, SIG_IGN);
    reset_signals();
    return !is_ignored(SIGXFSZ);
  }));
}

TEST(ProcessStateTest, ClosedStandardDescriptorsAreTakenAndStillFail) {
  for (unsigned closed = 0; closed < 8; ++closed) {
    EXPECT_TRUE(in_child([closed] {
      for (int fd = 0; fd < 3; ++fd) {
        if ((closed >> fd & 1U) != 0) ::close(fd);
      }
      reset_process_state();
      if (::open("/dev/null", O_RDWR) < 3) return false;
      char byte = 0;
      if ((closed & 1U) != 0 && (::read(0, &byte, 1) != -1 || errno != EBADF)) return false;
      for (int fd = 1; fd < 3; ++fd) {
        if ((closed >> fd & 1U) != 0 && (::write(fd, &byte, 1) != -1 || errno != EBADF)) return false;
      }
      return true;
    })) << closed;
  }
}

TEST(ProcessStateTest, OpenDescriptorsStayAsTheyAre) {
  EXPECT_TRUE(in_child([] {
    struct stat before {};
    struct stat after {};
    ::fstat(1, &before);
    reset_process_state();
    ::fstat(1, &after);
    return before.st_ino == after.st_ino && before.st_dev == after.st_dev;
  }));
}

}  // namespace
}  // namespace accel
