#include "base/visible.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace accel {
namespace {

using namespace std::string_literals;

TEST(VisibleTest, PlainTextStaysAsItIs) {
  for (const char* text : {"", "h.0.weight", "größe", "重み", "a\\b", "\xf0\x9f\xa6\x80"}) {
    EXPECT_EQ(visible(text), text);
    EXPECT_EQ(visible_lines(text), text);
    EXPECT_EQ(as_utf8(text), text);
  }
}

TEST(VisibleTest, WhatATerminalActsOnIsEscaped) {
  EXPECT_EQ(visible("\x1b]0;t\x07"), "\\x1b]0;t\\x07");
  EXPECT_EQ(visible("a\0b\x7f"s), "a\\x00b\\x7f");
  EXPECT_EQ(visible("a\r\tb\nc"), "a\\r\\tb\\nc");
  EXPECT_EQ(visible("\xc2\x9b"
                    "1m"),
            "\\u009b1m");
  EXPECT_EQ(visible("\xe2\x80\xae"
                    "cod\xe2\x80\xa8"),
            "\\u202ecod\\u2028");
}

TEST(VisibleTest, OnlyNewlinesStayInLines) { EXPECT_EQ(visible_lines("a\n\x1b\r\n"), "a\n\\x1b\\r\n"); }

TEST(VisibleTest, BytesThatAreNotUtf8AreEscaped) {
  EXPECT_EQ(visible("a\xff"), "a\\xff");
  EXPECT_EQ(visible("\x9b"
                    "1m"),
            "\\x9b1m");
  EXPECT_EQ(visible("\xe2\x82"), "\\xe2\\x82");                    // Cut off.
  EXPECT_EQ(visible("\xc0\x80"), "\\xc0\\x80");                    // An overlong form.
  EXPECT_EQ(visible("\xe0\x80\x8a"), "\\xe0\\x80\\x8a");           // An overlong form.
  EXPECT_EQ(visible("\xed\xb2\x80"), "\\xed\\xb2\\x80");           // A surrogate.
  EXPECT_EQ(visible("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // Beyond the last character.
}

TEST(VisibleTest, WhatIsVisibleDoesNotChange) {
  for (const std::string& text : {"a\n\x1b\\"s, "\xff\xc2\x9b"s, "plain"s})
    EXPECT_EQ(visible(visible(text)), visible(text));
}

TEST(VisibleTest, DifferentTextsAreDifferentInJson) {
  std::set<std::string> results;
  const std::string texts[] = {"\xff", "\\xff", "\\\\xff", "\\\xff", "\\x", "\\", "\\\\", "x", "\xff\\"};
  for (const std::string& text : texts) results.insert(as_utf8(text));
  EXPECT_EQ(results.size(), std::size(texts));
  EXPECT_EQ(as_utf8("a\\b\xff"), "a\\\\b\\xff");
  EXPECT_EQ(as_utf8("a\x1b"), "a\x1b");
}

TEST(VisibleTest, AJsonDocumentKeepsItsValue) {
  EXPECT_EQ(visible_json("{\"a\x7f\xc2\x9b\": \"b\"\n}"), "{\"a\\u007f\\u009b\": \"b\"\n}");
}

}  // namespace
}  // namespace accel
