#include "base/host/signal_source.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <thread>

#include "base/error.hpp"
#include "base/interrupt.hpp"

namespace accel {
namespace {

void send(int signal) { ::kill(::getpid(), signal); }

void await(SignalSource& source) {
  pollfd ready{source.fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&ready, 1, 60'000), 1);
}

ErrorKind kind_of(const std::function<void()>& throws) {
  try {
    throws();
  } catch (const Error& error) {
    return error.kind();
  }
  return ErrorKind::kFailure;
}

TEST(SignalSourceTest, ASignalOfOnePhaseIsKnownInTheNext) {
  SignalSource source;
  EXPECT_NO_THROW(check_interrupted());
  source.hold();
  send(SIGTERM);
  EXPECT_TRUE(source.has_to_end());
  EXPECT_NO_THROW(check_interrupted());
  source.close();
  source.interrupt();
  EXPECT_EQ(kind_of(check_interrupted), ErrorKind::kTerminated);
  EXPECT_EQ(kind_of([&] { source.hold(); }), ErrorKind::kTerminated);
  EXPECT_EQ(source.take(), SIGTERM);
  EXPECT_EQ(source.take(), std::nullopt);
  EXPECT_TRUE(source.is_asked_to_end());
}

TEST(SignalSourceTest, ASignalInterruptsWork) {
  SignalSource source;
  send(SIGUSR1);
  await(source);
  EXPECT_EQ(kind_of(check_interrupted), ErrorKind::kUserSignal1);
}

TEST(SignalSourceTest, ARequestToSaveDoesNotEndAnAttempt) {
  SignalSource source;
  source.hold();
  send(SIGUSR2);
  await(source);
  EXPECT_FALSE(source.has_to_end());
  EXPECT_EQ(source.take(), SIGUSR2);
  source.close();
  source.interrupt();
  EXPECT_NO_THROW(check_interrupted());
}

/// How a child that runs `action` ends.
template <class Action>
int status_of(const Action& action) {
  const pid_t child = ::fork();
  if (child == 0) {
    action();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

TEST(SignalSourceTest, TwoSignalsAtOnceAreOneAndALaterOneEndsTheProcess) {
  const int once = status_of([] {
    SignalSource source;
    send(SIGTERM);
    send(SIGHUP);
    await(source);
    (void)source.has_to_end();
  });
  EXPECT_TRUE(WIFEXITED(once));
  const int twice = status_of([] {
    SignalSource source;
    send(SIGTERM);
    await(source);
    std::this_thread::sleep_for(2 * SignalSource::kOneRequest);
    send(SIGINT);
    std::this_thread::sleep_for(std::chrono::minutes(1));
  });
  EXPECT_TRUE(WIFSIGNALED(twice) && WTERMSIG(twice) == SIGINT);
}

TEST(SignalSourceTest, AProcessThatWaitsForEverEnds) {
  const int status = status_of([] {
    const SignalSource source(std::chrono::seconds(1));
    send(SIGTERM);
    std::this_thread::sleep_for(std::chrono::minutes(1));
  });
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 143);
}

}  // namespace
}  // namespace accel
