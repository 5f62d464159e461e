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

TEST(TerminalTest, LinesBelowAreDrawnAgainBelowWhatComes) {
  const Pipe screen = make_pipe();
  Terminal terminal(screen.write.get(), screen.write.get());
  terminal.show_below({"bar", "loss"});
  terminal.pump();
  EXPECT_EQ(drain(screen.read.get()), "bar\nloss\n");
  terminal.show_below({"bar", "loss"});
  terminal.pump();
  EXPECT_EQ(drain(screen.read.get()), "");
  terminal.err("line\n");
  terminal.pump();
  EXPECT_EQ(drain(screen.read.get()), "\x1b[2F\x1b[Jline\nbar\nloss\n");
  terminal.show_below({"longer bar"});
  terminal.pump();
  EXPECT_EQ(drain(screen.read.get()), "\x1b[2F\x1b[Jlonger bar\n");
  terminal.show_below({});
  terminal.pump();
  EXPECT_EQ(drain(screen.read.get()), "\x1b[1F\x1b[J");
  terminal.err("the end\n");
  terminal.pump();
  EXPECT_EQ(drain(screen.read.get()), "the end\n");
}

TEST(TerminalTest, NothingIsDrawnBelowAPartialLine) {
  const Pipe screen = make_pipe();
  Terminal terminal(screen.write.get(), screen.write.get());
  terminal.err("half of");
  terminal.show_below({"bar"});
  terminal.pump();
  EXPECT_EQ(drain(screen.read.get()), "half of");
  terminal.err(" a line\n");
  terminal.pump();
  EXPECT_EQ(drain(screen.read.get()), " a line\nbar\n");
}

TEST(TerminalTest, LinesBelowAreOfNoConcernToAnotherStream) {
  const Pipe screen = make_pipe();
  const Pipe file = make_pipe();
  Terminal terminal(file.write.get(), screen.write.get());
  terminal.show_below({"bar"});
  terminal.out("result\n");
  terminal.pump();
  EXPECT_EQ(drain(file.read.get()), "result\n");
  EXPECT_EQ(drain(screen.read.get()), "bar\n");
}

TEST(TerminalTest, ASlowReaderGetsLinesBelowOnce) {
  const Pipe screen = make_pipe();
  Terminal terminal(screen.write.get(), screen.write.get());
  std::string line(1000, 'x');
  line.back() = '\n';
  std::string sent;
  while (!terminal.full()) {
    terminal.err(line);
    sent += line;
  }
  for (int step = 0; step < 1000; ++step) {
    terminal.show_below({"step " + std::to_string(step)});
    terminal.pump();
  }
  std::string received;
  while (terminal.waiting_fd() >= 0) {
    received += drain(screen.read.get());
    terminal.pump();
  }
  received += drain(screen.read.get());
  EXPECT_EQ(received, sent + "step 999\n");
}

TEST(TerminalTest, ClosingRemovesLinesBelow) {
  const Pipe screen = make_pipe();
  Terminal terminal(screen.write.get(), screen.write.get());
  terminal.show_below({"bar"});
  terminal.pump();
  terminal.close();
  terminal.show_below({"other"});
  terminal.pump();
  EXPECT_EQ(drain(screen.read.get()), "bar\n\x1b[1F\x1b[J");
}

}  // namespace
}  // namespace accel::launch
