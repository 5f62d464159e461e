#include "core/launch/output/log_queue.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/resource.h>

#include <chrono>
#include <csignal>

#include "temp_dir.hpp"

namespace accel::launch {
namespace {

using accel::testing::read_file;
using accel::testing::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(LogQueueTest, WritesEachFileInOrderAndAllBeforeItEnds) {
  const TempDir dir;
  std::string text;
  {
    LogQueue queue;
    QueuedLog one = queue.open(dir / "one", {});
    QueuedLog two = queue.open(dir / "two", {});
    QueuedLog().write("nowhere");
    for (int i = 0; i < 2000; ++i) {
      one.write(std::to_string(i) + "\n");
      two.write(std::to_string(-i) + "\n");
      text += std::to_string(i) + "\n";
      if (i == 1000) two.close();
    }
    two.write("nothing more");
  }
  EXPECT_EQ(read_file(dir / "one"), text);
  EXPECT_THAT(read_file(dir / "two"), ::testing::EndsWith("\n-999\n-1000\n"));
}

TEST(LogQueueTest, TellsWhatIsWrongOnce) {
  const TempDir dir;
  LogQueue queue;
  QueuedLog log = queue.open(dir / "log", {});
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 10;
  ::setrlimit(RLIMIT_FSIZE, &small);
  log.write("0123456789 and more");
  EXPECT_TRUE(queue.drain(std::chrono::minutes(10)));
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(queue.warnings(), ElementsAre(HasSubstr("File too large; this log ends here")));
  EXPECT_THAT(queue.warnings(), IsEmpty());
  EXPECT_EQ(read_file(dir / "log"), "0123456789");
}

}  // namespace
}  // namespace accel::launch
