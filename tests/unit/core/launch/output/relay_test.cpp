#include "core/launch/output/relay.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "temp_dir.hpp"

namespace accel::launch {
namespace {

using accel::testing::read_file;
using accel::testing::TempDir;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class LineCutterTest : public ::testing::Test {
 protected:
  void feed(std::string_view chunk) {
    cutter_.feed(chunk, [this](std::string_view lines) { seen_.emplace_back(lines); });
  }
  void finish() {
    cutter_.finish([this](std::string_view lines) { seen_.emplace_back(lines); });
  }
  LineCutter cutter_;
  std::vector<std::string> seen_;
};

TEST_F(LineCutterTest, HandsOnWholeLinesInOneCall) {
  feed("a\nb\nc");
  EXPECT_THAT(seen_, ElementsAre("a\nb\n"));
  feed("d\n");
  EXPECT_THAT(seen_, ElementsAre("a\nb\n", "cd\n"));
  finish();
  EXPECT_THAT(seen_, SizeIs(2));
}

TEST_F(LineCutterTest, FinishesTheLastPartialLine) {
  feed("no end");
  EXPECT_THAT(seen_, IsEmpty());
  finish();
  EXPECT_THAT(seen_, ElementsAre("no end\n"));
}

TEST_F(LineCutterTest, ProgressBarsMove) {
  feed("10%\r20%\r3");
  EXPECT_THAT(seen_, ElementsAre("10%\r20%\r"));
}

TEST_F(LineCutterTest, AnEndlessLineComesInParts) {
  const std::string part(1 << 19, 'x');
  for (int i = 0; i < 4; ++i) feed(part);
  EXPECT_THAT(seen_, ElementsAre(SizeIs(1 << 20), SizeIs(1 << 20)));
}

TEST(RelayPromptTest, APromptIsShownAndItsLineOnlyOnce) {
  const TempDir dir;
  for (const bool shows : {false, true}) {
    Pipe pipe = make_pipe();
    ::fcntl(pipe.read.get(), F_SETFL, O_NONBLOCK);
    std::vector<std::string> seen;
    Relay relay(std::move(pipe.read), {}, [&seen](std::string_view text) { seen.emplace_back(text); });
    if (shows) relay.show_prompts();
    const auto write = [&](std::string_view text) {
      ASSERT_EQ(::write(pipe.write.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
      relay.pump();
    };
    EXPECT_EQ(relay.prompt_due(), std::nullopt);
    write("a\n(Pdb) ");
    relay.serve_prompt();  // The worker has just written.
    EXPECT_THAT(seen, ElementsAre("a\n"));
    EXPECT_EQ(relay.prompt_due().has_value(), shows);
    if (shows) std::this_thread::sleep_until(*relay.prompt_due());
    relay.serve_prompt();
    relay.serve_prompt();
    write("2\n(Pdb) ");
    pipe.write.reset();
    relay.pump();
    EXPECT_EQ(relay.tail(), (std::deque<std::string>{"a", "(Pdb) 2", "(Pdb) "}));
    if (shows) {
      EXPECT_THAT(seen, ElementsAre("a\n", "(Pdb) ", "2\n", "(Pdb) \n"));
    } else {
      EXPECT_THAT(seen, ElementsAre("a\n", "(Pdb) 2\n", "(Pdb) \n"));
    }
  }
}

TEST(WithPrefixTest, EveryLineGetsIt) {
  EXPECT_EQ(with_prefix("a\n\nb\n", "[rank1] "), "[rank1] a\n[rank1] \n[rank1] b\n");
  EXPECT_EQ(with_prefix("a\r\nb\r", "> "), "> a\r\n> b\r");
  EXPECT_EQ(with_prefix("part", "> "), "> part");
  EXPECT_EQ(with_prefix("", "> "), "");
}

class RelayTest : public ::testing::Test {
 protected:
  RelayTest() : pipe_(make_pipe()) { ::fcntl(pipe_.read.get(), F_SETFL, O_NONBLOCK); }

  Relay relay(const std::filesystem::path& log = {}) {
    return Relay(std::move(pipe_.read), logs_.open(log, {}),
                 [this](std::string_view lines) { shown_ += lines; });
  }
  void say(std::string_view text) {
    ASSERT_EQ(::write(pipe_.write.get(), text.data(), text.size()), text.size());
  }

  std::string text_of_log() {
    EXPECT_TRUE(logs_.drain(std::chrono::minutes(10)));
    return read_file(dir_ / "log");
  }

  TempDir dir_;
  LogQueue logs_;
  Pipe pipe_;
  std::string shown_;
};

TEST_F(RelayTest, LogsEveryByteAndShowsWholeLines) {
  Relay r = relay(dir_ / "log");
  say("one\ntw");
  r.pump();
  EXPECT_EQ(text_of_log(), "one\ntw");
  EXPECT_EQ(shown_, "one\n");
  EXPECT_TRUE(r.open());
  pipe_.write.reset();
  r.pump();
  EXPECT_FALSE(r.open());
  EXPECT_EQ(text_of_log(), "one\ntw");
  EXPECT_EQ(shown_, "one\ntw\n");
}

TEST_F(RelayTest, RemembersTheLastLines) {
  Relay r = relay();
  for (int i = 0; i < 50; ++i) say("line " + std::to_string(i) + "\n");
  say("end");
  r.pump();
  pipe_.write.reset();
  r.pump();
  EXPECT_THAT(r.tail(), SizeIs(20));
  EXPECT_EQ(r.tail().front(), "line 31");
  EXPECT_EQ(r.tail().back(), "end");
}

TEST_F(RelayTest, RemembersShortOutputsWhole) {
  Relay r = relay();
  say("\na\n\nb\n");
  r.pump();
  EXPECT_THAT(r.tail(), ElementsAre("a", "b"));
}

TEST_F(RelayTest, ClosesThoughSomebodyHoldsTheOtherEnd) {
  Relay r = relay();
  say("last words");
  r.close();
  EXPECT_FALSE(r.open());
  EXPECT_EQ(shown_, "last words\n");
}

}  // namespace
}  // namespace accel::launch
