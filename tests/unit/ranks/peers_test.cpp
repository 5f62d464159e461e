#include "ranks/peers.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "ranks/shm_ranks.hpp"

namespace accel {
namespace {

TEST(ProcessIdentityTest, SurvivesItsText) {
  const ProcessIdentity self = ProcessIdentity::self();
  const ProcessIdentity read = ProcessIdentity::from(self.text());
  EXPECT_EQ(read.pid, ::getpid());
  EXPECT_EQ(read.pid_namespace, self.pid_namespace);
  EXPECT_EQ(read.boot, self.boot);
  EXPECT_GE(self.boot.size(), 32U);
  EXPECT_EQ(error_of([] { ProcessIdentity::from("x"); }), "'x' does not identify a process");
}

TEST(PeerWatchTest, NoticesAnEndBeforeItIsReaped) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  std::vector<ProcessIdentity> processes(3, ProcessIdentity::self());
  processes[2].pid = child;
  const PeerWatch watch(processes, 0);
  EXPECT_EQ(watch.ended(), std::nullopt);
  EXPECT_EQ(watch.pid(2), child);
  ::kill(child, SIGKILL);
  siginfo_t info;
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(watch.ended(), 2);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(watch.ended(), 2);
  EXPECT_NE(error_of([&] {
              PeerWatch(processes, 0);
            }).find(fmt::format("cannot watch rank 2, process '{}'", child)),
            std::string::npos);
}

TEST(PeerWatchTest, RefusesAnotherMachineAndAnotherContainer) {
  std::vector<ProcessIdentity> processes(2, ProcessIdentity::self());
  processes[1].boot = "00000000-0000-0000-0000-000000000000";
  EXPECT_EQ(error_of([&] { PeerWatch(processes, 0); }), "rank 1 is on another machine");
  processes[1] = processes[0];
  ++processes[1].pid_namespace;
  EXPECT_EQ(error_of([&] { PeerWatch(processes, 0); }), "rank 1 is in another container");
}

}  // namespace
}  // namespace accel
