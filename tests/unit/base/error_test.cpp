#include "base/error.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

#include "base/error_context.hpp"

namespace accel {
namespace {

TEST(ErrorTest, ContextGoesInFront) {
  Error error(ErrorKind::kCorrupt, "needs 8 bytes, has 4");
  error.add_context("tensor 'w'");
  error.add_context("'f.safetensors'");
  EXPECT_STREQ(error.what(), "'f.safetensors': tensor 'w': needs 8 bytes, has 4");
}

TEST(ErrorTest, AnErrorGetsTheContextOfWhatWasRun) {
  const auto message_of = [](auto run) -> std::string {
    try {
      run([] { throw Error(ErrorKind::kCorrupt, "'/x' ends early"); });
    } catch (const Error& e) {
      return e.message();
    }
    return "";
  };
  EXPECT_EQ(message_of([](auto fail) { with_context("tensor", "w", fail); }), "tensor 'w': '/x' ends early");
  EXPECT_EQ(message_of([](auto fail) { with_context("", "/y", fail); }), "'/y': '/x' ends early");
  EXPECT_EQ(message_of([](auto fail) { with_path("/y", fail); }), "'/y': '/x' ends early");
  EXPECT_EQ(message_of([](auto fail) { with_path("/x", fail); }), "'/x' ends early");
  EXPECT_EQ(with_context("tensor", "w", [] { return 7; }), 7);
}

TEST(ErrorTest, HintStaysApart) {
  const Error error = Error(ErrorKind::kUsage, "no such key").hint("did you mean 'lr'?");
  EXPECT_EQ(error.message(), "no such key");
  EXPECT_EQ(error.advice(), "did you mean 'lr'?");
}

TEST(ErrorTest, KindsMapToThePublishedExitCodes) {
  EXPECT_EQ(to_int(exit_code_of(ErrorKind::kFailure)), 1);
  EXPECT_EQ(to_int(exit_code_of(ErrorKind::kUsage)), 2);
  EXPECT_EQ(to_int(exit_code_of(ErrorKind::kMissing)), 4);
  EXPECT_EQ(to_int(exit_code_of(ErrorKind::kCorrupt)), 5);
  EXPECT_EQ(to_int(exit_code_of(ErrorKind::kWorker)), 6);
  EXPECT_EQ(to_int(exit_code_of(ErrorKind::kPreempted)), 7);
  EXPECT_EQ(to_int(exit_code_of(ErrorKind::kInterrupted)), 130);
  EXPECT_EQ(to_int(exit_code_of(ErrorKind::kTerminated)), 143);
}

TEST(ErrorTest, TheExitCodeAfterASignalIsThatOfAShell) {
  for (const int signal : {SIGHUP, SIGINT, SIGUSR1, SIGUSR2, SIGTERM}) {
    EXPECT_EQ(to_int(exit_code_of_signal(signal)), 128 + signal);
    EXPECT_TRUE(is_by_signal(error_of_signal(signal).kind()));
  }
  EXPECT_EQ(error_of_signal(SIGHUP).message(), "terminated by SIGHUP");
  EXPECT_EQ(error_of_signal(SIGINT).message(), "interrupted by SIGINT");
  EXPECT_FALSE(is_by_signal(ErrorKind::kPreempted));
}

TEST(ErrorTest, SystemErrorNamesActionPathAndReason) {
  const Error error = system_error("open", "/x/y", ENOENT);
  EXPECT_EQ(error.message(), "cannot open '/x/y': No such file or directory");
  EXPECT_EQ(system_error("write", "/x", ENOSPC).advice(), "free some space and try again");
}

TEST(ErrorTest, AFileSystemErrorSaysWhatOnWhichPath) {
  const std::filesystem::filesystem_error failure("directory iterator cannot open directory", "/x/y",
                                                  std::make_error_code(std::errc::permission_denied));
  EXPECT_EQ(error_of(failure).message(), "cannot access '/x/y': Permission denied");
  EXPECT_EQ(error_of(Error(ErrorKind::kMissing, "gone")).kind(), ErrorKind::kMissing);
  EXPECT_EQ(error_of(std::bad_alloc()).message(), "there is not enough memory");
  EXPECT_EQ(error_of(std::runtime_error("why")).message(), "why");
  EXPECT_EQ(error_of(std::runtime_error("\nwhy\n  where\n")).message(), "why\n  where");
}

}  // namespace
}  // namespace accel
