#include "cli/output/wrap.hpp"

#include <gtest/gtest.h>

namespace accel::cli {
namespace {

TEST(WrapTest, WithoutAWidthTheTextStays) {
  const std::string text = "a " + std::string(500, 'b') + " c\n\n  d  ";
  EXPECT_EQ(wrapped(text, std::nullopt), text);
  EXPECT_EQ(wrapped(text, 1000), text);
  EXPECT_EQ(wrapped("", 10), "");
}

TEST(WrapTest, TextIsBrokenAtBlanks) {
  EXPECT_EQ(wrapped("one two three four\nfive\n", 9), "one two\nthree\nfour\nfive\n");
  EXPECT_EQ(wrapped("  one two three", 13), "  one two\n  three");
  // A word that is too long stays whole.
  EXPECT_EQ(wrapped("a bbbbbbbbbbbb c", 5), "a\nbbbbbbbbbbbb\nc");
}

TEST(WrapTest, ADescriptionGoesOnBelowItself) {
  const std::string line = "  --some-flag N               Words of a description that is long";
  EXPECT_EQ(wrapped(line, 54),
            "  --some-flag N               Words of a description\n"
            "                              that is long");
  // In a narrow terminal there is no room beside the names.
  EXPECT_EQ(wrapped(line, 40), "  --some-flag N               Words of a\n    description that is long");
}

}  // namespace
}  // namespace accel::cli
