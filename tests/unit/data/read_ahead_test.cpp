#include "data/read_ahead.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

namespace accel {
namespace {

using namespace std::chrono_literals;

void wait_until(const std::function<bool()>& holds) {
  for (int i = 0; i < 5000 && !holds(); ++i) std::this_thread::sleep_for(1ms);
  ASSERT_TRUE(holds());
}

TEST(ReadAheadTest, ResultsComeInOrderAndNoFurtherAheadThanAsked) {
  std::atomic<int> reads = 0;
  ReadAhead<int> ahead(2, [&] { return reads++; });
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(ahead.take(), i);
    EXPECT_LE(reads, i + 4);  // Those that are taken, two in the queue, and this call.
  }
  wait_until([&] { return reads == 102; });
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(reads, 102);
}

TEST(ReadAheadTest, AnErrorComesInThePlaceOfItsResult) {
  int reads = 0;
  ReadAhead<std::string> ahead(2, [&] {
    if (reads == 3) throw std::runtime_error("the fourth");
    return std::to_string(reads++);
  });
  for (const char* expected : {"0", "1", "2"}) {
    std::this_thread::sleep_for(5ms);  // The error may have happened already.
    EXPECT_EQ(ahead.take(), expected);
  }
  for (int again = 0; again < 2; ++again) {
    try {
      (void)ahead.take();
      FAIL();
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "the fourth");
    }
  }
}

TEST(ReadAheadTest, EndsWithResultsThatNobodyTakes) {
  std::atomic<int> reads = 0;
  {
    ReadAhead<int> ahead(2, [&] { return reads++; });
    wait_until([&] { return reads == 2; });
  }
  EXPECT_EQ(reads, 2);
}

TEST(ReadAheadTest, EndsAfterTheCallThatIsUnderWay) {
  std::atomic<bool> is_reading = false;
  std::atomic<bool> is_read = false;
  {
    ReadAhead<int> ahead(2, [&] {
      is_reading = true;
      std::this_thread::sleep_for(50ms);
      is_read = true;
      return 0;
    });
    wait_until([&] { return is_reading.load(); });
  }
  EXPECT_TRUE(is_read);
}

TEST(ReadAheadTest, EndsWithAnErrorThatNobodyTakes) {
  std::atomic<bool> threw = false;
  ReadAhead<int> ahead(2, [&]() -> int {
    threw = true;
    throw std::runtime_error("nobody");
  });
  wait_until([&] { return threw.load(); });
}

}  // namespace
}  // namespace accel
