#include "report/command_sink.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "base/error.hpp"
#include "base/files/fd.hpp"
#include "base/log.hpp"
#include "temp_dir.hpp"

namespace accel {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::read_file;
using testing::TempDir;
using testing::write_file;

/// The lines of the log that `work` writes.
std::string said_by(const std::function<void()>& work) {
  std::string text;
  const log::Redirect redirect([&text](std::string_view line) { text += line; });
  work();
  return text;
}

std::vector<std::string> shell(const TempDir& dir, const std::string& script) {
  return {"sh", "-c", "cd '" + dir.path().string() + "'; " + script};
}

TEST(CommandSinkTest, TheCommandGetsEachRecordAndTheVariables) {
  const TempDir dir;
  CommandSink sink(shell(dir, "echo $ACCEL_OUTPUT_DIR $ACCEL_FIRST_STEP > who; cat > lines"), dir / "run");
  EXPECT_THAT(said_by([&] {
                sink.open(6);
                sink.write({{"step", 7}, {"loss", 0.5}});
                sink.write({{"step", 8}, {"loss", 0.25}});
                sink.close(std::chrono::seconds(30));
              }),
              IsEmpty());
  EXPECT_EQ(read_file(dir / "lines"), "{\"step\":7,\"loss\":0.5}\n{\"step\":8,\"loss\":0.25}\n");
  EXPECT_EQ(read_file(dir / "who"), (dir / "run").string() + " 7\n");
}

TEST(CommandSinkTest, TheCommandInheritsTheStandardStreamsAlone) {
  const TempDir dir;
  // Shells use numbers below 20 themselves.
  const Fd opened(::open((dir / "file").c_str(), O_WRONLY | O_CREAT, 0600));
  const Fd mine(::fcntl(opened.get(), F_DUPFD, 100));
  ASSERT_GE(mine.get(), 100);
  const std::string script = "for n in 0 1 2 " + std::to_string(mine.get()) +
                             "; do test -L /proc/$$/fd/$n && echo $n; done > descriptors";
  CommandSink sink(shell(dir, script + "; true"), dir.path());
  sink.open(0);
  sink.close(std::chrono::seconds(30));
  EXPECT_EQ(read_file(dir / "descriptors"), "0\n1\n2\n");
}

TEST(CommandSinkTest, ACommandThatDoesNotEndIsKilled) {
  const TempDir dir;
  CommandSink sink(shell(dir, "echo $$ > pid; exec sleep 1000"), dir.path());
  const std::string said = said_by([&] {
    sink.open(0);
    while (!std::filesystem::exists(dir / "pid") || read_file(dir / "pid").empty())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    sink.close(std::chrono::seconds(0));
  });
  EXPECT_THAT(said, HasSubstr("'sh' has not ended 0 s after the run, and is killed"));
  EXPECT_EQ(::kill(std::stoi(read_file(dir / "pid")), 0), -1);
}

TEST(CommandSinkTest, ACommandThatEndsIsAWarningAndNoSignal) {
  const TempDir dir;
  CommandSink sink(shell(dir, "touch ended; exit 3"), dir.path());
  const std::string said = said_by([&] {
    sink.open(0);
    // Its end closes the socket some time after the file is there.
    for (int step = 1; step < 20'000'000 && !std::filesystem::exists(dir / "ended"); ++step) {
    }
    // More than the socket holds, so that a write fails or the rest is dropped at the end.
    for (int step = 1; step <= 15; ++step) sink.write({{"step", step}, {"text", std::string(1 << 20, 'x')}});
    sink.close(std::chrono::seconds(30));
  });
  EXPECT_THAT(said, HasSubstr("'sh' reads no more; the training goes on without it"));
  EXPECT_THAT(said, HasSubstr("'sh' has failed (exit code 3)"));
}

TEST(CommandSinkTest, ACommandThatDoesNotReadHoldsUpNothing) {
  const TempDir dir;
  CommandSink sink(shell(dir, "while [ ! -e go ]; do sleep 0.01; done; cat > lines"), dir.path());
  std::string expected;
  EXPECT_THAT(said_by([&] {
                sink.open(0);
                // More than a socket holds. The command begins to read when all is written.
                for (int step = 1; step <= 20; ++step) {
                  const Metrics record = {{"step", step}, {"text", std::string(100'000, 'x')}};
                  expected += record.dump() + "\n";
                  sink.write(record);
                }
                write_file(dir / "go", "");
                sink.close(std::chrono::seconds(30));
              }),
              IsEmpty());
  EXPECT_TRUE(read_file(dir / "lines") == expected);
}

TEST(CommandSinkTest, WhatACommandNeverReadsIsDropped) {
  const TempDir dir;
  CommandSink sink(shell(dir, "while [ ! -e go ]; do sleep 0.01; done"), dir.path());
  const std::string said = said_by([&] {
    sink.open(0);
    for (int step = 1; step <= 20; ++step) sink.write({{"step", step}, {"text", std::string(1 << 20, 'x')}});
    write_file(dir / "go", "");
    sink.close(std::chrono::seconds(30));
  });
  EXPECT_THAT(said, HasSubstr("'sh' does not read what it gets; the training goes on without it"));
}

TEST(CommandSinkTest, ACommandThatIsNotThereIsAnError) {
  CommandSink sink({"no-such-command-anywhere"}, ".");
  EXPECT_THROW(sink.open(0), Error);
}

}  // namespace
}  // namespace accel
