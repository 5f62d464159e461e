#include "cli/line/candidates.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> offered(const std::vector<std::string>& words) {
  const OptionOutline help{{"-h", "--help"}, Takes::kNothing, {}, false, "Help"};
  const Outline outline{
      {help, {{"--color"}, Takes::kWord, {"always", "never"}, false, "Colour"}},
      {{"launch",
        "Run",
        {help,
         {{"--set"}, Takes::kWord, {"a=", "a=no", "a=yes", "b="}, true, "Set"},
         {{"--run-id"}, Takes::kWord, {}, false, "Name"},
         {{"--log"}, Takes::kDirectory, {}, false, "Log"}},
        {{{}, Takes::kFile, {}, false, ""}}},
       {"stop",
        "Stop",
        {},
        {{{}, Takes::kFile, {"now", "later"}, false, ""}, {{}, Takes::kFile, {}, false, ""}}}}};
  return candidates(outline, words);
}

TEST(CandidatesTest, CommandsStandBehindGlobalOptions) {
  for (const std::vector<std::string>& before : {std::vector<std::string>{},
                                                 {"-h", "--color=never"},
                                                 {"help"},
                                                 {"--color", "never"},
                                                 {"--color", "=", "never"}}) {
    std::vector<std::string> words = before;
    words.emplace_back();
    EXPECT_THAT(offered(words), ElementsAre("launch\tRun", "stop\tStop"));
  }
  EXPECT_THAT(offered({"unknown", ""}), IsEmpty());
}

TEST(CandidatesTest, AnOptionIsOfferedOnceUnlessItRepeats) {
  EXPECT_THAT(offered({"--color", "never", "launch", "--set", "a=1", "--run_id=x", "-"}),
              ElementsAre("-h\tHelp", "--help\tHelp", "--set\tSet", "--log\tLog"));
  EXPECT_THAT(offered({"stop", "--help", "-"}), ElementsAre("--color\tColour"));
}

TEST(CandidatesTest, ValuesAreWordsOrPaths) {
  EXPECT_THAT(offered({"launch", "--color", "n"}), ElementsAre("always", "never"));
  EXPECT_THAT(offered({"launch", "--color=n"}), ElementsAre("--color=always", "--color=never"));
  EXPECT_THAT(offered({"launch", "--set", ""}), ElementsAre("a=", "b="));
  EXPECT_THAT(offered({"launch", "--log", "x"}), ElementsAre(":directory"));
  EXPECT_THAT(offered({"launch", "--log=x"}), ElementsAre(":directory"));
  EXPECT_THAT(offered({"launch", "--run_id", ""}), IsEmpty());
  EXPECT_THAT(offered({"launch", "--unknown=x"}), IsEmpty());
}

TEST(CandidatesTest, BashSplitsWordsAtEqualSigns) {
  EXPECT_THAT(offered({"launch", "--color", "="}), ElementsAre("always", "never"));
  EXPECT_THAT(offered({"launch", "--color", "=", "n"}), ElementsAre("always", "never"));
  EXPECT_THAT(offered({"launch", "--set", "b", "=", "x"}), IsEmpty());
  EXPECT_THAT(offered({"launch", "--set", "a", "=", "x", ""}), ElementsAre(":file"));
  EXPECT_THAT(offered({"launch", "--set", "0", ":", "3", "gp"}), ElementsAre(":file"));
  EXPECT_THAT(offered({"launch", "--set", "0", ":", "3"}), IsEmpty());
  EXPECT_THAT(offered({"launch", "gpt.yaml", ">", "o"}), ElementsAre(":file"));
}

TEST(CandidatesTest, ValuesOfAKeyFollowItsName) {
  EXPECT_THAT(offered({"launch", "--set", "a"}), ElementsAre("a=", "b="));
  EXPECT_THAT(offered({"launch", "--set=a"}), ElementsAre("--set=a=", "--set=b="));
  EXPECT_THAT(offered({"launch", "--set", "a="}), ElementsAre("a=no", "a=yes"));
  EXPECT_THAT(offered({"launch", "--set", "a=y"}), ElementsAre("a=no", "a=yes"));
  EXPECT_THAT(offered({"launch", "--set=a=y"}), ElementsAre("--set=a=no", "--set=a=yes"));
  EXPECT_THAT(offered({"launch", "--set", "b=y"}), IsEmpty());
  EXPECT_THAT(offered({"launch", "--set", "unknown=y"}), IsEmpty());
  // As bash splits them.
  EXPECT_THAT(offered({"launch", "--set", "a", "="}), ElementsAre("no", "yes"));
  EXPECT_THAT(offered({"launch", "--set", "a", "=", "y"}), ElementsAre("no", "yes"));
  EXPECT_THAT(offered({"launch", "--set", "=", "a", "=", "y"}), ElementsAre("no", "yes"));
  EXPECT_THAT(offered({"launch", "c.yaml", "=", "y"}), IsEmpty());
}

TEST(CandidatesTest, ArgumentsFollowTheirPlaces) {
  EXPECT_THAT(offered({"launch", "--log", "x", "a"}), ElementsAre(":file"));
  EXPECT_THAT(offered({"launch", "a.yaml", "--log=x", ""}), IsEmpty());
  EXPECT_THAT(offered({"stop", ""}), ElementsAre("now", "later"));
  EXPECT_THAT(offered({"stop", "now", ""}), ElementsAre(":file"));
}

TEST(CandidatesTest, AProgramFollowsTwoHyphens) {
  EXPECT_THAT(offered({"launch", "a.yaml", "--", "pyth"}), ElementsAre(":program 4"));
  EXPECT_THAT(offered({"launch", "--", "cat", "--color", "n"}), ElementsAre(":program 3"));
  EXPECT_THAT(offered({"stop", "--", ""}), ElementsAre("now", "later"));
}

}  // namespace
}  // namespace accel::cli
