#include "base/files/stream.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <string>
#include <thread>

#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "temp_dir.hpp"

namespace accel {
namespace {

using testing::TempDir;
using testing::write_file;

std::string fifo_in(const TempDir& dir) {
  std::string path = (dir / "pipe").string();
  EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
  return path;
}

TEST(StreamTest, APipeIsReadToItsEnd) {
  const TempDir dir;
  const std::string text(200'000, 'x');
  const std::string pipe = fifo_in(dir);
  const auto read = [&](std::uint64_t limit) {
    std::jthread writer([&] {
      std::this_thread::sleep_for(
          std::chrono::milliseconds(20));  // A FIFO without a writer yet is not at its end.
      std::ofstream(pipe) << text;
    });
    return read_text_stream(pipe, limit);
  };
  ::signal(SIGPIPE, SIG_IGN);
  EXPECT_EQ(read(1'000'000), text);
  EXPECT_THROW((void)read(100), Error);
}

TEST(StreamTest, AFileIsReadAndAnEndlessOneEnds) {
  const TempDir dir;
  write_file(dir / "file", "text");
  EXPECT_EQ(read_text_stream(dir / "file", 10), "text");
  EXPECT_EQ(read_text_stream("/dev/null", 10), "");
  EXPECT_THROW((void)read_text_stream("/dev/zero", 1000), Error);
  EXPECT_THROW((void)read_text_stream(dir.path(), 10), Error);
  EXPECT_THROW((void)read_text_stream(dir / "none", 10), Error);
}

TEST(StreamTest, ASignalEndsTheWait) {
  const TempDir dir;
  const std::string pipe = fifo_in(dir);
  const InterruptGuard guard;
  const std::jthread sender([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ::kill(::getpid(), SIGTERM);
  });
  try {
    (void)read_text_stream(pipe, 10);
    FAIL() << "the wait ended without a writer";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kTerminated);
  }
}

}  // namespace
}  // namespace accel
