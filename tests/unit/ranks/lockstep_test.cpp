#include "ranks/lockstep.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>

#include "ranks/shared_collectives.hpp"
#include "ranks/shm_ranks.hpp"

namespace accel {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
constexpr auto kLong = 600s;

/// Returns accel's names in /dev/shm, without the folders of other tests, which run at the same time.
std::set<std::string> names_in_shm() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename().string();
    if (name.find("accel") != std::string::npos && !name.starts_with("accel-test-")) names.insert(name);
  }
  return names;
}

/// Waits until a thread of this process sleeps, as a thread does that waits for other ranks.
void await_sleep_of(pid_t thread) {
  for (;;) {
    std::ifstream file(fmt::format("/proc/self/task/{}/stat", thread));
    std::string text;
    std::getline(file, text);
    // The state follows the name, which stands in parentheses.
    if (const auto name_end = text.rfind(") "); name_end != std::string::npos && text[name_end + 2] == 'S')
      return;
    std::this_thread::sleep_for(1ms);
  }
}

TEST(LockstepTest, ALateRankIsWaitedForAsleep) {
  on_ranks(2, kSmallSlots, [](Lockstep& ranks) {
    SharedCollectives collectives(ranks);
    if (ranks.rank() == 1) std::this_thread::sleep_for(300ms);
    timespec before{};
    timespec after{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
    collectives.barrier(kLong);
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
    const double cpu_s = static_cast<double>(after.tv_sec - before.tv_sec) +
                         static_cast<double>(after.tv_nsec - before.tv_nsec) * 1e-9;
    EXPECT_LT(cpu_s, 0.1);
  });
}

TEST(LockstepTest, ATimeoutNamesTheRankTheCollectiveAndTheSeconds) {
  std::atomic<bool> failed = false;
  on_ranks(3, kSmallSlots, [&](Lockstep& ranks) {
    SharedCollectives collectives(ranks);
    collectives.barrier(kLong);
    if (ranks.rank() == 2) {
      while (!failed) std::this_thread::sleep_for(1ms);
      // A rank that comes too late gets the error at once.
      EXPECT_NE(error_of([&] { collectives.barrier(kLong); }).find("rank 2 did not come within 0.2 s"),
                std::string::npos);
      return;
    }
    const Clock::time_point start = Clock::now();
    const std::string error = error_of([&] { collectives.barrier(200ms); });
    EXPECT_GE(Clock::now() - start, 190ms);
    EXPECT_LT(Clock::now() - start, 5s);
    // The time depends on the load of the machine.
    EXPECT_TRUE(error.starts_with("barrier (collective 2) failed after ")) << error;
    EXPECT_NE(error.find(" s: rank 2 did not come within 0.2 s: it is at collective 1, this is rank "),
              std::string::npos)
        << error;
    const Clock::time_point again = Clock::now();
    EXPECT_NE(
        error_of([&] { collectives.barrier(kLong); }).find("(collective 3): not started, because an earlier"),
        std::string::npos);
    EXPECT_LT(Clock::now() - again, 1s);
    failed = true;
  });
}

TEST(LockstepTest, ARankThatClosesIsNoticedAtOnce) {
  on_ranks(3, kSmallSlots, [](Lockstep& ranks) {
    SharedCollectives collectives(ranks);
    collectives.barrier(kLong);
    if (ranks.rank() == 1) return;
    const Clock::time_point start = Clock::now();
    const std::string error = error_of([&] { collectives.barrier(kLong); });
    EXPECT_LT(Clock::now() - start, 5s);
    EXPECT_NE(error.find("rank 1 closed the group"), std::string::npos) << error;
  });
}

TEST(LockstepTest, ARankMayCloseAsSoonAsItsPartIsDone) {
  for (int round = 0; round < 300; ++round) {
    on_ranks(3, kSmallSlots, [](Lockstep& ranks) { SharedCollectives(ranks).barrier(kLong); });
  }
}

TEST(LockstepTest, CloseEndsAWaitInAnotherThread) {
  std::atomic<bool> given_up = false;
  on_ranks(2, kSmallSlots, [&](Lockstep& ranks) {
    SharedCollectives collectives(ranks);
    if (ranks.rank() == 1) {
      // Posts nothing until the other rank has given up.
      for (int i = 0; i < 10'000 && !given_up; ++i) std::this_thread::sleep_for(1ms);
      EXPECT_NE(error_of([&] { collectives.barrier(kLong); }).find("rank 0 closed the group"),
                std::string::npos);
      return;
    }
    const pid_t waiting = ::gettid();
    std::atomic<bool> begins = false;
    std::thread closer([&] {
      while (!begins) std::this_thread::yield();
      await_sleep_of(waiting);
      ranks.close();
    });
    const Clock::time_point start = Clock::now();
    begins = true;
    EXPECT_NE(error_of([&] { collectives.barrier(kLong); }).find("rank 0 closed the group"),
              std::string::npos);
    EXPECT_LT(Clock::now() - start, 5s);
    given_up = true;
    closer.join();
  });
}

TEST(LockstepTest, NamesAreThoseGiven) {
  SharedSegment segment = SharedSegment::create(Lockstep::shared_bytes(2, kSmallSlots));
  const std::vector<ProcessIdentity> processes(2, ProcessIdentity::self());
  Lockstep ranks(std::move(segment), PeerWatch(processes, 0), 0, 2, kSmallSlots, {"rank 4", "rank 6"});
  EXPECT_NE(error_of([&] { SharedCollectives(ranks).barrier(10ms); }).find("rank 6 did not come"),
            std::string::npos);
}

TEST(LockstepTest, RefusesSlotsThatCannotServe) {
  const std::vector<ProcessIdentity> processes(5, ProcessIdentity::self());
  for (const SlotGeometry& geometry : {SlotGeometry{256, 2}, {100, 2}, {1024, 0}}) {
    EXPECT_NE(error_of([&] {
                Lockstep(SharedSegment::create(1 << 20), PeerWatch(processes, 0), 0, 5, geometry);
              }).find("do not suit 5 ranks"),
              std::string::npos);
  }
}

/// The state of a process, such as 'S' for asleep and 'T' for stopped.
char state_of(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string text;
  std::getline(file, text);
  const auto name_end = text.rfind(") ");
  return name_end == std::string::npos ? 'X' : text[name_end + 2];
}

void await_state(pid_t process, std::string_view states) {
  while (states.find(state_of(process)) == std::string_view::npos) std::this_thread::sleep_for(1ms);
}

TEST(LockstepTest, TheTimeInWhichARankIsStoppedDoesNotCount) {
  constexpr auto kTimeout = 2s;
  SharedSegment segment = SharedSegment::create(Lockstep::shared_bytes(2, kSmallSlots));
  const std::string address = segment.address();
  std::vector<ProcessIdentity> processes(2, ProcessIdentity::self());
  std::array<int, 2> ready{};
  ASSERT_EQ(::pipe(ready.data()), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const std::string error = error_of([&] {
      Lockstep ranks(SharedSegment::open(address), PeerWatch(processes, 1), 1, 2, kSmallSlots);
      [[maybe_unused]] const auto told = ::write(ready[1], "r", 1);
      SharedCollectives(ranks).barrier(kTimeout);
    });
    ::_exit(error == "nothing" ? 0 : 1);
  }
  processes[1].pid = child;
  Lockstep ranks(std::move(segment), PeerWatch(processes, 0), 0, 2, kSmallSlots);
  std::array<char, 1> byte{};
  ASSERT_EQ(::read(ready[0], byte.data(), 1), 1);  // The other rank is about to wait.
  await_state(child, "S");
  ::kill(child, SIGSTOP);
  await_state(child, "T");
  std::this_thread::sleep_for(kTimeout + 100ms);  // The time-out of the stopped rank passes.
  ::kill(child, SIGCONT);
  // It looks at the time, and waits again or fails.
  await_state(child, "SZ");
  EXPECT_EQ(error_of([&] { SharedCollectives(ranks).barrier(kLong); }), "nothing");
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ::close(ready[0]);
  ::close(ready[1]);
}

// Rank 0 is this process, the others are its children. Rank 1 is killed in the middle of a run of
// collectives.
TEST(LockstepTest, AKilledRankIsReportedInSecondsAndNothingIsLeft) {
  constexpr int kRanks = 3;
  const SlotGeometry geometry = {.slot_bytes = 4096, .slots = 4};
  const std::set<std::string> shared_before = names_in_shm();
  std::array<int, 2> result{};
  ASSERT_EQ(::pipe(result.data()), 0);
  {
    SharedSegment segment = SharedSegment::create(Lockstep::shared_bytes(kRanks, geometry));
    std::array<int, 2> go{};
    ASSERT_EQ(::pipe(go.data()), 0);
    std::vector<ProcessIdentity> processes(kRanks, ProcessIdentity::self());
    const std::string address = segment.address();
    std::atomic<int> rounds = 0;
    const auto run = [&](int rank, SharedSegment own) {
      Lockstep ranks(std::move(own), PeerWatch(processes, rank), rank, kRanks, geometry);
      SharedCollectives collectives(ranks);
      std::vector<float> data(100'000, 1.0F);
      for (;; ++rounds) {
        collectives.all_reduce(std::as_writable_bytes(std::span(data)), Element::kFloat32, Reduction::kMax,
                               kLong);
      }
    };
    for (int rank = 1; rank < kRanks; ++rank) {
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        // The identities of the others come through the pipe when all of them run.
        std::array<int, kRanks> pids{};
        if (::read(go[0], pids.data(), sizeof pids) != sizeof pids) ::_exit(1);
        for (std::size_t i = 0; i < kRanks; ++i) processes[i].pid = pids[i];
        const std::string error = error_of([&] { run(rank, SharedSegment::open(address)); });
        [[maybe_unused]] const auto written = ::write(result[1], error.data(), error.size());
        ::_exit(0);
      }
      processes[static_cast<std::size_t>(rank)].pid = child;
    }
    std::array<int, kRanks> pids{};
    for (std::size_t i = 0; i < kRanks; ++i) pids[i] = processes[i].pid;
    for (int rank = 1; rank < kRanks; ++rank)
      ASSERT_EQ(::write(go[1], pids.data(), sizeof pids), static_cast<ssize_t>(sizeof pids));
    ::close(go[0]);
    ::close(go[1]);
    ::close(result[1]);

    std::atomic<Clock::rep> killed = 0;
    std::thread killer([&] {
      while (rounds < 20) std::this_thread::sleep_for(1ms);
      killed = Clock::now().time_since_epoch().count();
      ::kill(pids[1], SIGKILL);
    });
    const std::string error = error_of([&] { run(0, SharedSegment::open(address)); });
    killer.join();
    EXPECT_LT(Clock::now().time_since_epoch().count() - killed, Clock::duration(5s).count());
    const std::string expected = fmt::format("rank 1 (process {}) ended", pids[1]);
    EXPECT_TRUE(error.starts_with("all-reduce of 100000 float32 (collective ")) << error;
    EXPECT_TRUE(error.ends_with(expected)) << error;

    std::array<char, 1000> text{};
    ASSERT_GT(::read(result[0], text.data(), text.size() - 1), 0);
    EXPECT_TRUE(std::string(text.data()).ends_with(expected)) << text.data();
    ::close(result[0]);
    for (std::size_t i = 1; i < kRanks; ++i) {
      int status = 0;
      EXPECT_EQ(::waitpid(pids[i], &status, 0), pids[i]);
      EXPECT_EQ(WIFSIGNALED(status), i == 1);
    }
  }
  EXPECT_EQ(names_in_shm(), shared_before);
  std::ifstream maps("/proc/self/maps");
  std::stringstream text;
  text << maps.rdbuf();
  EXPECT_EQ(text.str().find("accel-ranks"), std::string::npos);
}

}  // namespace
}  // namespace accel
