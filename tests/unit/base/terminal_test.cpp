#include "base/terminal.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace accel {
namespace {

TEST(TerminalTextTest, ALineIsBrokenAtBlanks) {
  EXPECT_EQ(wrapped_at(10, "one two three four", 2), "one two\n  three\n  four");
  EXPECT_EQ(wrapped_at(18, "one two three four", 2), "one two three four");
  EXPECT_EQ(wrapped_at(17, "one two three four", 0), "one two three\nfour");
  EXPECT_EQ(wrapped_at(10, "one two", 4, 4), "one\n    two");
  EXPECT_EQ(wrapped_at(10, "", 2), "");
  EXPECT_EQ(wrapped_at(6, "  a  b   ", 2), "  a  b   ");
}

TEST(TerminalTextTest, AWordIsNeverBroken) {
  EXPECT_EQ(wrapped_at(5, "a /a/long/path b", 2), "a\n  /a/long/path\n  b");
  EXPECT_EQ(wrapped_at(5, "/a/long/path", 2), "/a/long/path");
}

TEST(TerminalTextTest, CharactersCountAndNotBytes) {
  EXPECT_EQ(wrapped_at(7, "äöü äöü", 0), "äöü äöü");
  EXPECT_EQ(wrapped_at(6, "äöü äöü", 0), "äöü\näöü");
}

TEST(TerminalTextTest, LaterLinesGoOnBelowThemselves) {
  EXPECT_EQ(wrapped_at(12, "head\n  one two three\n\nend", 7), "head\n  one two\n    three\n\nend");
}

TEST(TerminalTextTest, NothingIsLost) {
  const std::string text = "step 5/20  loss 4.1  lr 1e-3\n  | a  b\n    c";
  for (std::size_t width = 1; width < 40; ++width) {
    std::string words = wrapped_at(width, text, 3);
    std::string expected = text;
    for (std::string* one : {&words, &expected})
      one->erase(std::remove_if(one->begin(), one->end(), [](char c) { return c == ' ' || c == '\n'; }),
                 one->end());
    EXPECT_EQ(words, expected);
  }
}

TEST(TerminalTextTest, RowsAreErasedFromTheirFirst) {
  EXPECT_EQ(erased_rows(0), "");
  EXPECT_EQ(erased_rows(3), "\x1b[3F\x1b[J");
}

}  // namespace
}  // namespace accel
