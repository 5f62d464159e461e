#include "cli/arguments.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ArgumentsTest, UnderscoresAndHyphensAreOneInNamesOfFlags) {
  const Arguments a =
      take_apart({"launch", "my_file.yaml", "--num_processes=2", "--log_dir", "a_b", "--set", "x_y=1_2"});
  EXPECT_THAT(a.own, ElementsAre("launch", "my_file.yaml", "--num-processes=2", "--log-dir", "a_b", "--set",
                                 "x_y=1_2"));
  EXPECT_EQ(a.command, "launch");
}

TEST(ArgumentsTest, TheProgramIsLeftAlone) {
  for (const char* command : {"launch", "check"}) {
    const Arguments a = take_apart({command, "--cpu", "--", "python3", "--my_flag", "--", "x"});
    EXPECT_THAT(a.own, ElementsAre(command, "--cpu"));
    EXPECT_THAT(a.program, ElementsAre("python3", "--my_flag", "--", "x"));
  }
}

TEST(ArgumentsTest, OtherCommandsHaveNoProgram) {
  const Arguments a = take_apart({"inspect", "--", "--odd-name"});
  EXPECT_THAT(a.own, ElementsAre("inspect", "--", "--odd-name"));
  EXPECT_THAT(a.program, IsEmpty());
}

TEST(ArgumentsTest, FindsTheCommandBehindGlobalFlags) {
  EXPECT_EQ(take_apart({"--color", "never", "--json", "launch"}).command, "launch");
  EXPECT_EQ(take_apart({"--color=never", "lauch"}).command, "lauch");
  EXPECT_FALSE(take_apart({"--version"}).command.has_value());
  EXPECT_FALSE(take_apart({}).command.has_value());
}

}  // namespace
}  // namespace accel::cli
