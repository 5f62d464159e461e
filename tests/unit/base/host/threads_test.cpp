#include "base/host/threads.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>

namespace accel {
namespace {

TEST(RunOnThreadsTest, RunsTheWorkOnAsManyAsAskedFor) {
  for (const unsigned threads : {1U, 2U, 5U}) {
    std::atomic<unsigned> runs = 0;
    run_on_threads(threads, [&] { ++runs; });
    EXPECT_EQ(runs, threads);
  }
}

TEST(RunOnThreadsTest, ThrowsWhatOneThrewWhenAllAreDone) {
  std::atomic<unsigned> runs = 0;
  const auto work = [&] {
    if (++runs == 2) throw std::runtime_error("second");
  };
  EXPECT_THROW(run_on_threads(4, work), std::runtime_error);
  EXPECT_EQ(runs, 4U);
}

TEST(RunBothTest, RunsBothAtOnce) {
  std::atomic<int> arrived = 0;
  const auto meet = [&] {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();
  };
  run_both(meet, meet);
  EXPECT_EQ(arrived, 2);
}

TEST(RunBothTest, ThrowsTheFirstsFailureBeforeTheSeconds) {
  std::atomic<int> runs = 0;
  const auto fails_with = [&](const char* text) {
    return [&runs, text] {
      ++runs;
      throw std::runtime_error(text);
    };
  };
  const auto works = [&] { ++runs; };
  const auto message_of = [](const std::function<void()>& first, const std::function<void()>& second) {
    try {
      run_both(first, second);
    } catch (const std::runtime_error& e) {
      return std::string(e.what());
    }
    return std::string("nothing");
  };
  EXPECT_EQ(message_of(fails_with("first"), fails_with("second")), "first");
  EXPECT_EQ(message_of(works, fails_with("second")), "second");
  EXPECT_EQ(message_of(fails_with("first"), works), "first");
  EXPECT_EQ(runs, 6);
}

TEST(RunOnThreadsTest, DefaultIsTwoToFour) {
  EXPECT_GE(default_threads(), 2U);
  EXPECT_LE(default_threads(), 4U);
}

// A signal that is blocked when the thread itself raises it would end the process without its handler.
TEST(ThreadWithoutSignalsTest, ReportsItsOwnFaults) {
  const auto faults = [] {
    ::signal(SIGSEGV, [](int) { ::_exit(42); });
    thread_without_signals([] { ::raise(SIGSEGV); }).join();
    ::_exit(0);
  };
  EXPECT_EXIT(faults(), ::testing::ExitedWithCode(42), "");
}

}  // namespace
}  // namespace accel
