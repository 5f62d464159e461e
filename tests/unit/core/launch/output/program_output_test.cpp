#include "core/launch/output/program_output.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <stdexcept>

#include "temp_dir.hpp"

namespace accel::launch {
namespace {

using namespace std::chrono_literals;
using accel::testing::read_file;
using accel::testing::TempDir;
using End = ProgramOutput::End;

constexpr std::chrono::seconds kLong{30};

bool never() { return false; }

ProgramOutput shell(const std::string& script, std::chrono::milliseconds patience = kLong) {
  return output_of({"sh", "-c", script}, patience, never);
}

/// Whether the process whose number is in the file has ended. It waits up to two seconds.
bool has_ended(const std::filesystem::path& file) {
  const pid_t pid = std::stoi(read_file(file));
  for (int i = 0; i < 200; ++i) {
    // An orphan that has ended may wait for its new parent.
    const std::string status = read_file("/proc/" + std::to_string(pid) + "/stat");
    if (::kill(pid, 0) != 0 || status.find(") Z ") != std::string::npos) return true;
    ::usleep(10'000);
  }
  return false;
}

TEST(ProgramOutputTest, TakesStdoutAlone) {
  const ProgramOutput output = shell("echo one; echo two >&2; cat; echo three");
  EXPECT_EQ(output.end, End::kDone);
  EXPECT_EQ(output.text, "one\nthree\n");
}

TEST(ProgramOutputTest, TakesMoreThanAPipeHolds) {
  const ProgramOutput output = shell("head -c 3000000 /dev/zero | tr '\\0' x");
  EXPECT_EQ(output.end, End::kDone);
  EXPECT_EQ(output.text, std::string(3'000'000, 'x'));
}

TEST(ProgramOutputTest, SaysHowItEnded) {
  EXPECT_EQ(output_of({"accel-no-such-program"}, kLong, never).end, End::kMissing);
  const ProgramOutput failed = shell("echo text; exit 3");
  EXPECT_EQ(failed.end, End::kFailed);
  EXPECT_EQ(failed.text, "");
  EXPECT_EQ(shell("true").end, End::kFailed);
}

TEST(ProgramOutputTest, KillsTheWholeGroupOfAProgramThatIsTooSlow) {
  const TempDir dir;
  const std::string child = (dir / "child").string();
  EXPECT_EQ(shell("sleep 100 & echo $! >" + child + "; echo text; wait", 300ms).end, End::kTooLate);
  EXPECT_TRUE(has_ended(child));
}

TEST(ProgramOutputTest, DoesNotWaitForAProgramThatClosesItsOutput) {
  EXPECT_EQ(shell("echo text; exec >&-; sleep 100", 300ms).end, End::kTooLate);
}

TEST(ProgramOutputTest, EndsWhenItIsCancelled) {
  std::atomic<int> asked = 0;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(output_of({"sleep", "100"}, kLong, [&] { return ++asked > 2; }).end, End::kTooLate);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kLong / 2);
}

TEST(ProgramOutputTest, KillsTheProgramIfTheQuestionThrows) {
  const TempDir dir;
  const std::string self = (dir / "self").string();
  const auto throws_once_it_runs = [&]() -> bool {
    if (read_file(self).ends_with('\n')) throw std::runtime_error("interrupted");
    return false;
  };
  EXPECT_THROW(
      (void)output_of({"sh", "-c", "echo $$ >" + self + "; exec sleep 100"}, kLong, throws_once_it_runs),
      std::runtime_error);
  EXPECT_TRUE(has_ended(self));
}

}  // namespace
}  // namespace accel::launch
