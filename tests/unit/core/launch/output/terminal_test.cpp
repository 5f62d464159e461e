#include "core/launch/output/terminal.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>

#include "core/launch/output/pipe.hpp"

namespace accel::launch {
namespace {

std::string drain(int fd) {
  ::fcntl(fd, F_SETFL, O_NONBLOCK);
  std::string text(1 << 20, '\0');
  const ssize_t got = ::read(fd, text.data(), text.size());
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text;
}

TEST(TerminalTest, KeepsTheOrderOfBothStreams) {
  const Pipe both = make_pipe();
  Terminal terminal(both.write.get(), both.write.get());
  terminal.out("a\n");
  terminal.err("b\n");
  terminal.out("c\n");
  EXPECT_EQ(terminal.waiting_fd(), both.write.get());
  terminal.pump();
  EXPECT_EQ(terminal.waiting_fd(), -1);
  EXPECT_EQ(drain(both.read.get()), "a\nb\nc\n");
}

TEST(TerminalTest, NeverBlocksAndLosesNothing) {
  const Pipe pipe = make_pipe();
  Terminal terminal(pipe.write.get(), pipe.write.get());
  std::string sent;
  while (!terminal.full()) {
    const std::string line = std::to_string(sent.size()) + std::string(1000, 'x') + "\n";
    terminal.out(line);
    sent += line;
  }
  std::string received;
  while (terminal.waiting_fd() >= 0) {
    terminal.pump();
    received += drain(pipe.read.get());
  }
  EXPECT_EQ(received, sent);
  EXPECT_FALSE(terminal.full());
}

TEST(TerminalTest, AReaderThatIsGoneStopsNothing) {
  ::signal(SIGPIPE, SIG_IGN);
  Pipe pipe = make_pipe();
  pipe.read.reset();
  Terminal terminal(pipe.write.get(), pipe.write.get());
  terminal.out("lost\n");
  terminal.pump();
  EXPECT_EQ(terminal.waiting_fd(), -1);
}

}  // namespace
}  // namespace accel::launch
