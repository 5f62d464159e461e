#include "base/files/flight_record.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "temp_dir.hpp"

namespace accel {
namespace {

using ::testing::SizeIs;

/// Runs `work` in a process that has the record at `path`, and ends it by SIGKILL.
template <class Work>
void in_killed_process(const std::filesystem::path& path, Work&& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv(kFlightVariable, path.c_str(), 1);
    flight::open();
    work();
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(WTERMSIG(status), SIGKILL);
}

TEST(FlightRecordTest, IsReadAfterTheRankWasKilled) {
  const testing::TempDir directory;
  const auto path = directory / "rank_3.flight";
  ASSERT_TRUE(create_flight_record(path, 3));
  set_flight_pid(path, 4711);
  in_killed_process(path, [] {
    FlightGroup group;
    group.name = "shard/1";
    group.set_members({1, 3, 5});
    flight::set_done(11);
    flight::set_step(12);
    const flight::Label label("layers.2");
    const std::uint64_t gather = flight::begin(FlightOp::kAllGather, 4096, &group);
    flight::wait(gather);
    flight::end(gather);
    { const flight::Scope scope(FlightOp::kForward); }
    const flight::Label inner("head");
    flight::wait(flight::begin(FlightOp::kReduceScatter, 8, &group));
  });
  const auto record = read_flight_record(path);
  ASSERT_TRUE(record);
  EXPECT_EQ(record->rank, 3);
  EXPECT_EQ(record->pid, 4711);
  EXPECT_EQ(record->step, 12);
  ASSERT_THAT(record->events, SizeIs(3));
  const FlightEvent& gather = record->events[0];
  EXPECT_EQ(gather.op, FlightOp::kAllGather);
  EXPECT_EQ(gather.unit, "layers.2");
  EXPECT_EQ(gather.bytes, 4096U);
  EXPECT_EQ(gather.group.name, "shard/1");
  EXPECT_EQ(gather.group.first, 1);
  EXPECT_EQ(gather.group.stride, 2);
  EXPECT_EQ(gather.group.count, 3);
  EXPECT_EQ(gather.in_group, 1U);
  EXPECT_LE(gather.begun_ns, gather.waited_ns);
  EXPECT_LE(gather.waited_ns, gather.ended_ns);
  EXPECT_EQ(record->events[1].op, FlightOp::kForward);
  EXPECT_EQ(record->events[1].waited_ns, 0);
  EXPECT_NE(record->events[1].ended_ns, 0);
  EXPECT_EQ(record->events[2].unit, "head");
  EXPECT_EQ(record->events[2].in_group, 2U);
  EXPECT_EQ(record->events[2].ended_ns, 0);
  EXPECT_EQ(read_flight_progress(path)->events, record->progress);
  EXPECT_EQ(read_flight_progress(path)->done, 11);
}

/// Returns the number of an enqueued all-gather for which the stream waits.
std::uint64_t enqueue(FlightGroup& group) {
  const std::uint64_t number = flight::begin(FlightOp::kAllGather, 8, &group);
  flight::wait(number);
  flight::end(number);
  return number;
}

TEST(FlightRecordTest, AnEnqueuedCollectiveIsOpenUntilTheHostHasWaitedForTheGpu) {
  const testing::TempDir directory;
  const auto path = directory / "record";
  ASSERT_TRUE(create_flight_record(path, 0));
  in_killed_process(path, [] {
    FlightGroup group;
    group.enqueues = true;
    enqueue(group);
    const std::uint64_t prefetched = flight::begin(FlightOp::kAllGather, 8, &group);
    { const flight::HostSync sync(true); }
    flight::wait(prefetched);
    flight::end(prefetched);
    { const flight::HostSync none(false); }
    const flight::HostSync sync(true);
    const std::int64_t began = nanoseconds_since_1970();
    while (nanoseconds_since_1970() == began) {
    }
    enqueue(group);  // Another thread may do so while the host waits.
  });
  const auto record = read_flight_record(path);
  ASSERT_TRUE(record);
  ASSERT_THAT(record->events, SizeIs(5));
  const std::vector<FlightEvent>& events = record->events;
  EXPECT_TRUE(events[0].group.enqueues);
  EXPECT_EQ(events[2].op, FlightOp::kHostSync);
  EXPECT_FALSE(events[2].group.enqueues);
  EXPECT_GE(events[0].ended_ns, events[2].begun_ns);
  EXPECT_NE(events[2].ended_ns, 0);
  // The stream did not wait for it before the first host sync, but before the second.
  EXPECT_GE(events[1].ended_ns, events[3].begun_ns);
  EXPECT_EQ(events[3].op, FlightOp::kHostSync);
  EXPECT_NE(events[4].waited_ns, 0);
  EXPECT_EQ(events[4].ended_ns, 0);
}

TEST(FlightRecordTest, AHostSyncThatFailsEndsNoCollective) {
  const testing::TempDir directory;
  const auto path = directory / "record";
  ASSERT_TRUE(create_flight_record(path, 0));
  in_killed_process(path, [] {
    FlightGroup group;
    group.enqueues = true;
    enqueue(group);
    try {
      const flight::HostSync sync(true);
      throw std::runtime_error("an error of the GPU");
    } catch (const std::runtime_error&) {
    }
  });
  const auto record = read_flight_record(path);
  ASSERT_TRUE(record);
  ASSERT_THAT(record->events, SizeIs(2));
  EXPECT_EQ(record->events[0].ended_ns, 0);
  EXPECT_NE(record->events[1].ended_ns, 0);
}

TEST(FlightRecordTest, AHostSyncEndsNothingForWhichTheHostWaitsOtherwise) {
  const testing::TempDir directory;
  const auto path = directory / "record";
  ASSERT_TRUE(create_flight_record(path, 0));
  in_killed_process(path, [] {
    FlightGroup host;
    flight::wait(flight::begin(FlightOp::kAllReduce, 8, &host));
    FlightGroup gpu;
    gpu.enqueues = true;
    flight::wait(flight::begin(FlightOp::kExchange, 8, &gpu));  // Through the store.
    { const flight::HostSync sync(true); }
    { const flight::Scope exchange(FlightOp::kExchange, 8, &gpu); }
  });
  const auto record = read_flight_record(path);
  ASSERT_TRUE(record);
  ASSERT_THAT(record->events, SizeIs(4));
  EXPECT_EQ(record->events[0].ended_ns, 0);
  EXPECT_EQ(record->events[1].ended_ns, 0);
  EXPECT_FALSE(record->events[1].group.enqueues);
  EXPECT_NE(record->events[3].ended_ns, 0);
}

TEST(FlightRecordTest, KeepsTheNewestEvents) {
  const testing::TempDir directory;
  const auto path = directory / "record";
  ASSERT_TRUE(create_flight_record(path, 0));
  in_killed_process(path, [] {
    for (int i = 0; i < 1000; ++i) flight::end(flight::begin(FlightOp::kForward));
  });
  const auto record = read_flight_record(path);
  ASSERT_TRUE(record);
  ASSERT_THAT(record->events, SizeIs(256));
  EXPECT_EQ(record->events.front().number, 745U);
  EXPECT_EQ(record->events.back().number, 1000U);
}

TEST(FlightRecordTest, IsNotReadFromAnotherFile) {
  const testing::TempDir directory;
  EXPECT_FALSE(read_flight_record(directory / "missing"));
  std::ofstream(directory / "short") << "accflt02";
  EXPECT_FALSE(read_flight_record(directory / "short"));
  std::ofstream(directory / "long") << std::string(1 << 20, 'x');
  EXPECT_FALSE(read_flight_record(directory / "long"));
}

TEST(FlightRecordTest, MayBecomeShorterWhileItIsRead) {
  const testing::TempDir directory;
  const auto path = directory / "record";
  ASSERT_TRUE(create_flight_record(path, 5));
  const auto size = std::filesystem::file_size(path);
  const std::string bytes = testing::read_file(path);
  std::atomic<bool> ends = false;
  std::thread changes([&] {
    while (!ends) {
      std::filesystem::resize_file(path, 0);
      std::filesystem::resize_file(path, size);
      std::ofstream(path, std::ios::in | std::ios::out) << bytes;
    }
  });
  for (int i = 0; i < 2000; ++i) {
    const auto record = read_flight_record(path);
    EXPECT_TRUE(!record || record->events.empty());
    (void)read_flight_progress(path);
  }
  ends = true;
  changes.join();
}

TEST(FlightRecordTest, CannotBeMadeWithoutSpace) {
  const testing::TempDir directory;
  const auto path = directory / "record";
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit little{1024, 1024};
    ::setrlimit(RLIMIT_FSIZE, &little);
    ::_exit(create_flight_record(path, 0) ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(FlightRecordTest, UnevenRanksAreNotKnown) {
  FlightGroup group;
  group.set_members({0, 1, 3});
  EXPECT_EQ(group.count, 0);
}

}  // namespace
}  // namespace accel
