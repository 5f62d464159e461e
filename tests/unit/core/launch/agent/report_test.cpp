#include "core/launch/agent/report.hpp"

#include "base/text.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <utime.h>

#include <csignal>

#include "temp_dir.hpp"

namespace accel::launch {
namespace {

using accel::testing::TempDir;
using accel::testing::write_file;
using ::testing::HasSubstr;
using ::testing::Not;

WorkerOutcome worker(int rank, ExitStatus status, bool on_its_own, int order) {
  WorkerOutcome outcome;
  outcome.rank = rank;
  outcome.pid = 100 + rank;
  outcome.status = status;
  outcome.on_its_own = on_its_own;
  outcome.order = order;
  return outcome;
}

const ExitStatus kGood{0, 0};
const ExitStatus kPreempted{7, 0};
const ExitStatus kStopped{0, SIGTERM};

TEST(ReportTest, ReadsBothShapesOfErrorFile) {
  const TempDir dir;
  const auto read = [&](std::string_view text) {
    write_file(dir / "error.json", text);
    const auto error = read_worker_error(dir / "error.json");
    return error ? error->message : "absent";
  };
  EXPECT_EQ(read(R"({"message": {"message": "ValueError: x", "extraInfo": {"timestamp": "1"}}})"),
            "ValueError: x");
  EXPECT_EQ(read(R"({"message": "plain"})"), "plain");
  EXPECT_EQ(read(R"({"message": {"message": )"), "absent");
  EXPECT_EQ(read(R"({"message": 3})"), "absent");
  EXPECT_EQ(read(R"([])"), "absent");
  EXPECT_EQ(read(""), "absent");
  EXPECT_FALSE(read_worker_error(dir / "none").has_value());
  EXPECT_FALSE(read_worker_error("").has_value());
}

TEST(ReportTest, TheFirstFailureIsTheCause) {
  const GroupOutcome group{
      {worker(0, {1, 0}, true, 1), worker(1, {3, 0}, true, 0), worker(2, kStopped, false, 2)}, 0};
  ASSERT_NE(root_cause(group), nullptr);
  EXPECT_EQ(root_cause(group)->rank, 1);
}

TEST(ReportTest, AmongFailuresOfOneMomentTheFirstErrorFileDecides) {
  const TempDir dir;
  GroupOutcome group{{worker(0, {1, 0}, true, 0), worker(1, {1, 0}, true, 1)}, 0};
  group.workers[0].error_file = dir / "0";
  group.workers[1].error_file = dir / "1";
  write_file(dir / "0", "{}");
  write_file(dir / "1", "{}");
  const utimbuf earlier{1000, 1000};
  ASSERT_EQ(::utime((dir / "1").c_str(), &earlier), 0);
  EXPECT_EQ(root_cause(group)->rank, 1);
}

// The cause ends later than those that fail because of it, when the group is already being stopped.
TEST(ReportTest, WhoSaidItFirstIsTheCauseEvenIfItEndedLater) {
  const TempDir dir;
  GroupOutcome group{{worker(0, {1, 0}, true, 0), worker(1, {1, 0}, false, 1), worker(2, kStopped, false, 2)},
                     0};
  group.workers[0].error_file = dir / "0";
  group.workers[1].error_file = dir / "1";
  write_file(dir / "0", "{}");
  write_file(dir / "1", "{}");
  const auto set_time = [&](const char* name, std::time_t time) {
    const utimbuf times{time, time};
    ASSERT_EQ(::utime((dir / name).c_str(), &times), 0);
  };
  set_time("0", 2000);
  set_time("1", 1000);
  EXPECT_EQ(root_cause(group)->rank, 1);
  set_time("1", 3000);  // The error file reports that it was stopped.
  EXPECT_EQ(root_cause(group)->rank, 0);
  group.workers[0].error_file.clear();  // It was killed; the others report the effects.
  EXPECT_EQ(root_cause(group)->rank, 0);
  group.workers[0].on_its_own = false;
  EXPECT_EQ(root_cause(group), nullptr);
}

// Under load all are collected at once: rank 1, which crashed; rank 0, which reported that rank 1 had ended;
// and rank 2, which reported it before rank 0, and was stopped.
TEST(ReportTest, WhoDiesWithoutAWordIsTheCauseAndNotWhoTellsOfIt) {
  const TempDir dir;
  GroupOutcome group{
      {worker(0, {1, 0}, true, 1), worker(1, {0, SIGSEGV}, true, 0), worker(2, kStopped, false, 2)}, 0};
  for (const auto& [rank, time] : {std::pair(0, 2000), std::pair(2, 1000)}) {
    auto& file = group.workers[static_cast<std::size_t>(rank)].error_file;
    file = dir / std::to_string(rank);
    write_file(file, "{}");
    const utimbuf times{time, time};
    ASSERT_EQ(::utime(file.c_str(), &times), 0);
  }
  EXPECT_EQ(root_cause(group)->rank, 1);
}

TEST(ReportTest, WhomTheLauncherStoppedIsNotTheCause) {
  const TempDir dir;
  for (const ExitStatus stopped : {kStopped, ExitStatus{0, SIGKILL}, ExitStatus{143, 0}}) {
    GroupOutcome group{{worker(0, {1, 0}, true, 0), worker(1, stopped, false, 1)}, 0};
    for (auto& one : group.workers) {
      one.error_file = dir / std::to_string(one.rank);
      write_file(one.error_file, "{}");
    }
    const utimbuf earlier{1000, 1000};
    ASSERT_EQ(::utime((dir / "1").c_str(), &earlier), 0);
    EXPECT_EQ(root_cause(group)->rank, 0);
    group.stopped_at_ns = 999'000'000'000;
    EXPECT_EQ(root_cause(group)->rank, 0);
    // It had written its error file before, and was still ending.
    group.stopped_at_ns = 1001'000'000'000;
    EXPECT_EQ(root_cause(group)->rank, 1);
  }
}

TEST(ReportTest, AnUnknownStatusIsAFailure) {
  const ExitStatus unknown{.known = false};
  EXPECT_FALSE(unknown.success());
  EXPECT_EQ(text_of(unknown), "the exit status is not known");
  EXPECT_EQ(exit_code_of_group({{worker(0, unknown, true, 0)}, 0}), ExitCode::kWorkerFailed);
}

TEST(ReportTest, ATrainingThatWasAskedToStopInItsLastStepHasFinished) {
  GroupOutcome group{{worker(0, kGood, false, 0), worker(1, kGood, false, 1)}, SIGTERM};
  EXPECT_EQ(exit_code_of_group(group), ExitCode::kTerminated);
  group.catches_stop_signals = true;
  EXPECT_EQ(exit_code_of_group(group), ExitCode::kSuccess);
}

TEST(ReportTest, ExitCodes) {
  const auto code = [](std::vector<WorkerOutcome> workers, int interrupted_by = 0) {
    return exit_code_of_group({std::move(workers), interrupted_by});
  };
  EXPECT_EQ(code({worker(0, kGood, true, 0), worker(1, kGood, true, 1)}), ExitCode::kSuccess);
  EXPECT_EQ(code({worker(0, {3, 0}, true, 0), worker(1, kStopped, false, 1)}), ExitCode::kWorkerFailed);
  EXPECT_EQ(code({worker(0, kPreempted, true, 0), worker(1, kPreempted, true, 1)}), ExitCode::kPreempted);
  EXPECT_EQ(code({worker(0, kPreempted, false, 0)}, SIGTERM), ExitCode::kPreempted);
  EXPECT_EQ(code({worker(0, kPreempted, true, 0), worker(1, kStopped, false, 1)}), ExitCode::kWorkerFailed);
  EXPECT_EQ(code({worker(0, kStopped, false, 0)}, SIGTERM), ExitCode::kTerminated);
  EXPECT_EQ(code({worker(0, kGood, false, 0)}, SIGINT), ExitCode::kInterrupted);
  EXPECT_EQ(code({worker(0, kStopped, false, 0)}, SIGHUP), ExitCode::kHungUp);
  EXPECT_EQ(code({worker(0, {1, 0}, true, 0)}, SIGINT), ExitCode::kWorkerFailed);
}

TEST(ReportTest, SaysWhetherTheKernelKilledForWantOfMemory) {
  GroupOutcome group{{worker(0, {0, SIGKILL}, true, 0)}, 0};
  const auto first_line = [&](OomKills kills) {
    group.oom_kills = kills;
    return split(failure_report(group, group.workers[0], "n1"), '\n').front();
  };
  EXPECT_THAT(first_line({1, 1}),
              HasSubstr("(Killed) by the kernel, since its control group has no memory left"));
  EXPECT_THAT(first_line({0, 1}), HasSubstr("likely by the kernel"));
  EXPECT_THAT(first_line({std::nullopt, 0}), HasSubstr("by another process"));
  EXPECT_THAT(first_line({}), HasSubstr("may have run out of memory"));
}

TEST(ReportTest, SaysWhatTheKernelsLogSaysOfGpus) {
  GroupOutcome group{{worker(0, {1, 0}, true, 0), worker(1, kStopped, false, 1)}, 0};
  group.gpu_errors = {"NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\x1b[2J"};
  EXPECT_THAT(
      failure_report(group, group.workers[0], "n1"),
      HasSubstr("\n  the kernel's log: NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\\x1b[2J\n"
                "  rank 1: "));
}

TEST(ReportTest, SaysItAllOnOneScreen) {
  const TempDir dir;
  GroupOutcome group{
      {worker(0, kStopped, false, 1), worker(1, {0, SIGKILL}, true, 0), worker(2, kGood, true, 2)}, 0};
  group.world_size = 3;
  WorkerOutcome& cause = group.workers[1];
  cause.error_file = dir / "error.json";
  write_file(cause.error_file, R"({"message": {"message": "RuntimeError: no\nsecond line"}})");
  cause.log = "logs/stderr.log";
  cause.last_lines = {"before\x1b[31m", std::string(300, 'y')};
  EXPECT_EQ(
      failure_report(group, cause, "n1"),
      "rank 1 of 3 failed: killed by SIGKILL (Killed); the system may have run out of memory (see dmesg)\n"
      "  host: n1, pid 101\n"
      "  error: RuntimeError: no\n"
      "    second line\n"
      "  its last lines:\n"
      "    | before\\x1b[31m\n"
      "    | " +
          std::string(200, 'y') +
          "...\n"
          "  log: logs/stderr.log\n"
          "  rank 0: killed by SIGTERM (Terminated), after it was asked to stop\n"
          "  rank 2: finished");
}

TEST(ReportTest, LastLinesThatOnlyRepeatTheErrorAreLeftOut) {
  const TempDir dir;
  GroupOutcome group{{worker(0, {1, 0}, true, 0)}, 0};
  WorkerOutcome& cause = group.workers[0];
  cause.error_file = dir / "error.json";
  write_file(cause.error_file, R"({"message": {"message": "no such class"}})");
  cause.last_lines = {"step 1", "rank 0: error: no such class"};
  EXPECT_THAT(failure_report(group, cause, "n1"), HasSubstr("  its last lines:\n    | step 1"));
  EXPECT_THAT(failure_report(group, cause, "n1"), Not(HasSubstr("rank 0: error")));
  cause.last_lines = {"rank 0: error: no such class"};
  EXPECT_THAT(failure_report(group, cause, "n1"), Not(HasSubstr("its last lines")));
}

TEST(ReportTest, ManyRanksStayOnOneScreen) {
  GroupOutcome group;
  for (int rank = 0; rank < 1000; ++rank) group.workers.push_back(worker(rank, {1, 0}, rank == 5, rank));
  const std::string report = failure_report(group, group.workers[5], "n1");
  EXPECT_THAT(report, HasSubstr("and 983 more ranks"));
  EXPECT_LT(std::count(report.begin(), report.end(), '\n'), 25);
}

TEST(ReportTest, StatusesInWords) {
  EXPECT_EQ(text_of(ExitStatus{3, 0}), "exit code 3");
  EXPECT_EQ(text_of(ExitStatus{0, SIGSEGV}), "killed by SIGSEGV (Segmentation fault)");
  EXPECT_EQ(text_of(ExitStatus{139, 0}), "exit code 139 (128 + SIGSEGV)");
  EXPECT_EQ(text_of(ExitStatus{255, 0}), "exit code 255");
}

}  // namespace
}  // namespace accel::launch
