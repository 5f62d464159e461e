#include "core/launch/agent/process.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>

namespace accel::launch {
namespace {

using namespace std::chrono_literals;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

pid_t fork_child(const std::function<void()>& work) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  work();
  ::_exit(9);
}

[[noreturn]] void sleep_for_ever() {
  while (true) ::pause();
}

/// A child that stays when it is killed, like one in an uninterruptible system call: it has ended, but a
/// tracer withholds its end.
class Unkillable {
 public:
  Unkillable() {
    const Pipe ready = make_pipe();
    pid_ = fork_child([&] {
      ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
      ::close(ready.write.get());
      sleep_for_ever();
    });
    const Pipe traced = make_pipe();
    tracer_ = fork_child([&] {
      const char ok = ::ptrace(PTRACE_SEIZE, pid_, nullptr, nullptr) == 0 ? 1 : 0;
      (void)!::write(traced.write.get(), &ok, 1);
      sleep_for_ever();
    });
    char ok = 0;
    is_traced_ = ::read(traced.read.get(), &ok, 1) == 1 && ok == 1;
  }
  Unkillable(const Unkillable&) = delete;
  Unkillable& operator=(const Unkillable&) = delete;
  ~Unkillable() {
    for (const pid_t pid : {tracer_, pid_}) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] pid_t tracer() const { return tracer_; }
  [[nodiscard]] bool is_traced() const { return is_traced_; }

 private:
  pid_t pid_ = -1;
  pid_t tracer_ = -1;
  bool is_traced_ = false;
};

TEST(ProcessTest, TheStatusOfAChild) {
  EXPECT_EQ(reap_with_group(fork_child([] { ::_exit(9); })), (ExitStatus{9, 0}));
  EXPECT_EQ(reap_with_group(fork_child([] { ::raise(SIGKILL); })), (ExitStatus{0, SIGKILL}));
}

TEST(ProcessTest, KillsAGroupAndReapsItsLeader) {
  const pid_t leader = fork_child(sleep_for_ever);
  ::setpgid(leader, leader);
  EXPECT_TRUE(kill_with_group(leader));
  EXPECT_EQ(::kill(leader, 0), -1);
}

TEST(ProcessTest, AStatusThatCannotBeHadIsNoSuccess) {
  ::signal(SIGCHLD, SIG_IGN);
  const ExitStatus status = reap_with_group(fork_child([] { ::_exit(9); }));
  ::signal(SIGCHLD, SIG_DFL);
  EXPECT_FALSE(status.known);
  EXPECT_FALSE(status.success());
}

TEST(ProcessTest, KillsAdoptedChildrenButThoseThatAreSpared) {
  const pid_t spared = fork_child(sleep_for_ever);
  const pid_t other = fork_child(sleep_for_ever);
  EXPECT_THAT(kill_adopted_children([&](pid_t pid) { return pid == spared; }), IsEmpty());
  EXPECT_EQ(::kill(other, 0), -1);
  EXPECT_EQ(::kill(spared, 0), 0);
  ::kill(spared, SIGKILL);
  ::waitpid(spared, nullptr, 0);
}

TEST(ProcessTest, WhoCannotBeKilledIsNotWaitedForForEver) {
  const Unkillable child;
  if (!child.is_traced()) GTEST_SKIP() << "this system allows no tracing";
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(kill_adopted_children([&](pid_t pid) { return pid == child.tracer(); }, 100ms),
              ElementsAre(child.pid()));
  EXPECT_FALSE(reap_with_group(child.pid(), 100ms).known);
  EXPECT_FALSE(kill_with_group(child.pid(), 100ms));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
}

TEST(ProcessTest, WhoCannotBeKilledKeepsNobodyElseAlive) {
  const Unkillable child;
  if (!child.is_traced()) GTEST_SKIP() << "this system allows no tracing";
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  // It becomes a child of this process when its parent has been killed, after the first search.
  Pipe pipe = make_pipe();
  fork_child([&] {
    const pid_t late = fork_child([] { sleep_for_ever(); });
    [[maybe_unused]] const ssize_t told = ::write(pipe.write.get(), &late, sizeof late);
    sleep_for_ever();
  });
  pid_t late = 0;
  ASSERT_EQ(::read(pipe.read.get(), &late, sizeof late), static_cast<ssize_t>(sizeof late));
  EXPECT_THAT(kill_adopted_children([&](pid_t pid) { return pid == child.tracer(); }, 200ms),
              ElementsAre(child.pid()));
  EXPECT_EQ(::kill(late, 0), -1);
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST(ProcessTest, AProcessIsNamedWithoutControlCharacters) {
  const pid_t pid = fork_child([] {
    ::prctl(PR_SET_NAME, "a\x1b[31mb");
    sleep_for_ever();
  });
  const auto give_up = std::chrono::steady_clock::now() + 10s;
  const std::string expected = std::to_string(pid) + " (a?[31mb)";
  while (text_of_process(pid) != expected && std::chrono::steady_clock::now() < give_up) ::usleep(1000);
  EXPECT_EQ(text_of_process(pid), expected);
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

TEST(ProcessTest, MergingReplacesAndAdds) {
  ::setenv("ACCEL_TEST_OLD", "old", 1);
  const std::vector<std::string> merged =
      merged_environment({{"ACCEL_TEST_OLD", "new"}, {"ACCEL_TEST_NEW", "=1"}});
  ::unsetenv("ACCEL_TEST_OLD");
  EXPECT_THAT(merged, Contains("ACCEL_TEST_OLD=new"));
  EXPECT_THAT(merged, Contains("ACCEL_TEST_NEW==1"));
  EXPECT_THAT(merged, Not(Contains("ACCEL_TEST_OLD=old")));
}

}  // namespace
}  // namespace accel::launch
