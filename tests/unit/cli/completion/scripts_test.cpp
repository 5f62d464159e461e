#include "cli/completion/scripts.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A program with a help text and names that a shell would take apart.
Outline sample() {
  Outline outline;
  outline.globals = {{{"-h", "--help"}, Takes::kNothing, "", {}, false, "It's [help]: \\ and more"},
                     {{"--color"}, Takes::kWord, "WHEN", {"always", "never"}, false, "Colour"}};
  outline.commands = {
      {"launch",
       "Run: all",
       {{{"--set"}, Takes::kWord, "K:V", {"a=", "b="}, true, "Set"}},
       {{"CONFIG", Takes::kFile, {}}}},
      {"stop", "Stop", {{{"--log"}, Takes::kDirectory, "DIR", {}, false, "Log"}}, {}},
  };
  return outline;
}

TEST(CompletionTest, BashOffersWhatEachOptionTakes) {
  const std::string script = bash_completion(sample());
  EXPECT_THAT(script, HasSubstr("*' --color') words='always never' ;;"));
  EXPECT_THAT(script, HasSubstr("'launch --set') words='a= b=' ;;"));
  EXPECT_THAT(script, HasSubstr("'stop --log') paths=directory ;;"));
  EXPECT_THAT(script, HasSubstr("' '*) words='launch stop' ;;"));
  EXPECT_THAT(script, HasSubstr("'launch '*) paths=file ;;"));
  EXPECT_THAT(script, HasSubstr("'stop -'*) words='--log -h --help --color' ;;"));
}

TEST(CompletionTest, ZshQuotesTexts) {
  const std::string script = zsh_completion(sample());
  EXPECT_THAT(script, HasSubstr(R"('(-h --help)--help[It'\''s \[help\]: \\ and more]')"));
  EXPECT_THAT(script, HasSubstr(R"('(--color)--color=[Colour]:WHEN:(always never)')"));
  EXPECT_THAT(script, HasSubstr(R"('*--set=[Set]:K\:V:{compadd -S "" -- a= b=}')"));
  EXPECT_THAT(script, HasSubstr(R"('launch:Run\: all')"));
  EXPECT_THAT(script, HasSubstr(R"('(--log)--log=[Log]:DIR:_files -/')"));
}

TEST(CompletionTest, FishQuotesTexts) {
  const std::string script = fish_completion(sample());
  EXPECT_THAT(script, HasSubstr(R"(complete -c accel -s h -l help -d 'It\'s [help]: \\ and more')"));
  EXPECT_THAT(script,
              HasSubstr("complete -c accel -n '__accel_command_is launch' -l set -x -a 'a= b=' -d 'Set'"));
  EXPECT_THAT(script, HasSubstr("complete -c accel -n '__accel_command_is launch' -F\n"));
  EXPECT_THAT(script, HasSubstr("            case --color\n"));
}

TEST(CompletionTest, NamesOptionsWithAValue) {
  EXPECT_THAT(names_with_value(sample().globals), ElementsAre("--color"));
}

}  // namespace
}  // namespace accel::cli
