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
  const Arguments a = take_apart({"launch", "--cpu", "--", "python3", "--my_flag", "--", "x"});
  EXPECT_THAT(a.own, ElementsAre("launch", "--cpu"));
  EXPECT_THAT(a.program, ElementsAre("python3", "--my_flag", "--", "x"));
}

TEST(ArgumentsTest, OnlyLaunchHasAProgram) {
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

TEST(ArgumentsTest, Sizes) {
  EXPECT_EQ(parse_size("0"), 0u);
  EXPECT_EQ(parse_size("100"), 100u);
  EXPECT_EQ(parse_size("17B"), 17u);
  EXPECT_EQ(parse_size("5GB"), 5'000'000'000u);
  EXPECT_EQ(parse_size(" 1.5 gb"), 1'500'000'000u);
  EXPECT_EQ(parse_size("0.64KB"), 640u);
  EXPECT_EQ(parse_size("64MiB"), std::uint64_t{64} << 20);
  EXPECT_EQ(parse_size("2T"), 2'000'000'000'000u);
}

TEST(ArgumentsTest, NoSizes) {
  for (const char* text :
       {"", "GB", "-1", "-0", "5XB", "5GBB", "1e3", "nan", "inf", "i", "5i", "5iB", "9999999PB", "5 G B"}) {
    EXPECT_EQ(parse_size(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace accel::cli
