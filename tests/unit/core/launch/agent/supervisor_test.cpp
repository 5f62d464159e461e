#include "core/launch/agent/supervisor.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>

#include "base/error.hpp"
#include "base/text.hpp"
#include "temp_dir.hpp"

namespace accel::launch {
namespace {

using accel::testing::read_file;
using accel::testing::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

/// Other machines that run until this one has ended, and want nothing of it.
class QuietPeers final : public Peers {
 public:
  void add_polls(std::vector<pollfd>& /*polls*/) const override {}
  [[nodiscard]] std::chrono::steady_clock::time_point deadline() const override {
    return std::chrono::steady_clock::now() + std::chrono::seconds(1);
  }
  PeerRequest serve() override { return {}; }
  void report_silence(std::optional<std::chrono::milliseconds> /*silence*/) override {}
  [[nodiscard]] bool decides() const override { return true; }
  [[nodiscard]] std::optional<std::chrono::milliseconds> silence_elsewhere() const override {
    return std::nullopt;
  }
  void on_hang() override {}
  void on_failure() override { ++failures; }
  void on_signal(int /*signal*/) override {}
  void on_end(const GroupOutcome& /*outcome*/) override { has_ended = true; }
  [[nodiscard]] bool is_over() const override { return has_ended; }

  int failures = 0;
  bool has_ended = false;
};

/// Runs shell scripts as workers. The streams of the launcher are files.
class SupervisorTest : public ::testing::Test {
 protected:
  GroupOutcome run(const std::string& script, int ranks, double grace_period_s = 5, Peers* peers = nullptr) {
    LaunchPlan plan;
    plan.run_id = "test-" + std::to_string(::getpid());
    plan.command = {"/bin/bash", "-c", "cd '" + dir_.path().string() + "'; " + script};
    plan.grace_period_s = grace_period_s;
    for (int rank = 0; rank < ranks; ++rank) {
      WorkerPlan worker;
      worker.shows_out = rank == 0;
      worker.has_prefix = rank > 0;
      worker.rank = rank;
      worker.variables = {{"RANK", std::to_string(rank)}, {"TORCHELASTIC_RUN_ID", plan.run_id}};
      worker.log_dir = dir_ / ("rank_" + std::to_string(rank));
      std::filesystem::create_directories(worker.log_dir);
      plan.workers.push_back(std::move(worker));
    }
    const Fd out(::open((dir_ / "out").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600));
    const Fd err(::open((dir_ / "err").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600));
    const auto begin = std::chrono::steady_clock::now();
    SignalSource signals;
    GroupOutcome group = supervise(plan, out.get(), err.get(), signals, peers);
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return group;
  }

  TempDir dir_;
  double seconds_ = 0;
};

TEST_F(SupervisorTest, ShowsRank0AndTheErrorsOfOthers) {
  const GroupOutcome group = run("echo out $RANK; echo err $RANK >&2", 2);
  EXPECT_TRUE(group.workers[0].status.success());
  EXPECT_EQ(read_file(dir_ / "out"), "out 0\n");
  EXPECT_THAT(split(read_file(dir_ / "err"), '\n'), UnorderedElementsAre("err 0", "[rank1] err 1", ""));
  EXPECT_EQ(read_file(dir_ / "rank_1/stdout.log"), "out 1\n");
  EXPECT_EQ(read_file(dir_ / "rank_1/stderr.log"), "err 1\n");
}

TEST_F(SupervisorTest, OtherMachinesHearThatARankDoesNotFollowAPreemptedOne) {
  QuietPeers peers;
  run("test $RANK = 0 && exit 7; exec sleep 100", 2, 0.3, &peers);
  EXPECT_EQ(peers.failures, 1);
}

TEST_F(SupervisorTest, OneFailureEndsTheGroup) {
  const GroupOutcome group = run("[ $RANK = 1 ] && { echo oh >&2; exit 3; }; exec sleep 60", 3);
  EXPECT_EQ(group.workers[1].status, (ExitStatus{3, 0}));
  EXPECT_TRUE(group.workers[1].on_its_own);
  EXPECT_THAT(group.workers[1].last_lines, ElementsAre("oh"));
  for (const int rank : {0, 2}) {
    EXPECT_EQ(group.workers[static_cast<std::size_t>(rank)].status, (ExitStatus{0, SIGTERM}));
    EXPECT_FALSE(group.workers[static_cast<std::size_t>(rank)].on_its_own);
  }
  EXPECT_LT(seconds_, 5);
}

TEST_F(SupervisorTest, WhoeverIgnoresSigtermIsKilledAfterTheGracePeriod) {
  const GroupOutcome group =
      run("trap '' TERM; [ $RANK = 1 ] && { until [ -e deaf ]; do sleep 0.01; done; exit 3; }; "
          ": >deaf; while :; do sleep 1; done",
          2, 0.2);
  EXPECT_EQ(group.workers[0].status, (ExitStatus{0, SIGKILL}));
  EXPECT_LT(seconds_, 5);
}

TEST_F(SupervisorTest, OutputBeforeACrashIsKeptWithItsPartialLine) {
  const GroupOutcome group = run("printf 'last words'; kill -SEGV $$", 1);
  EXPECT_EQ(group.workers[0].status, (ExitStatus{0, SIGSEGV}));
  EXPECT_EQ(read_file(dir_ / "out"), "last words\n");
  EXPECT_EQ(read_file(dir_ / "rank_0/stdout.log"), "last words");
}

TEST_F(SupervisorTest, AGrandchildThatHoldsThePipeDelaysNothing) {
  const GroupOutcome group = run("sleep 60 & setsid sleep 60 & echo done", 1);
  EXPECT_TRUE(group.workers[0].status.success());
  EXPECT_EQ(read_file(dir_ / "out"), "done\n");
  EXPECT_LT(seconds_, 5);
}

TEST_F(SupervisorTest, PreemptionIsNoFailureButTheOthersHaveToFollow) {
  // Rank 1 follows when the launcher has seen the end of rank 0.
  const GroupOutcome all =
      run("[ $RANK = 0 ] && { echo $$ >pid; exit 7; }; until [ -s pid ]; do sleep 0.01; done; "
          "while kill -0 $(cat pid) 2>/dev/null; do sleep 0.01; done; exit 7",
          2);
  EXPECT_EQ(all.workers[1].status, (ExitStatus{7, 0}));
  const GroupOutcome some = run("[ $RANK = 0 ] && exit 7; exec sleep 60", 2, 0.3);
  EXPECT_EQ(some.workers[0].status, (ExitStatus{7, 0}));
  EXPECT_EQ(some.workers[1].status, (ExitStatus{0, SIGTERM}));
  EXPECT_LT(seconds_, 5);
}

TEST_F(SupervisorTest, AProgramThatCannotBeExecutedIsAnError) {
  LaunchPlan plan;
  plan.run_id = "x";
  plan.command = {(dir_ / "none").string()};
  plan.workers.resize(2);
  try {
    SignalSource signals;
    (void)supervise(plan, 1, 2, signals);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("No such file"));
  }
}

TEST_F(SupervisorTest, AnIgnoredSigchldTakesNoStatusAway) {
  ::signal(SIGCHLD, SIG_IGN);
  const GroupOutcome group = run("exit 9", 1);
  EXPECT_EQ(::signal(SIGCHLD, SIG_DFL), SIG_IGN);
  EXPECT_EQ(group.workers[0].status, (ExitStatus{9, 0}));
}

TEST_F(SupervisorTest, WorkersStartWithDefaultDispositionsAndNoMask) {
  ::signal(SIGUSR2, SIG_IGN);
  const GroupOutcome group = run("grep -E '^Sig(Blk|Ign)' /proc/self/status", 1);
  ::signal(SIGUSR2, SIG_DFL);
  EXPECT_TRUE(group.workers[0].status.success());
  EXPECT_EQ(read_file(dir_ / "out"), "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
}

TEST_F(SupervisorTest, TheCallerGetsItsSignalsBack) {
  sigset_t before;
  sigset_t after;
  ::sigprocmask(SIG_BLOCK, nullptr, &before);
  (void)run("exit 0", 1);
  ::sigprocmask(SIG_BLOCK, nullptr, &after);
  for (const int signal : {SIGINT, SIGTERM, SIGCHLD})
    EXPECT_EQ(::sigismember(&before, signal), ::sigismember(&after, signal));
}

}  // namespace
}  // namespace accel::launch
