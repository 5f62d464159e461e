#include "cli/line/arguments.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace accel::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// A launch with one flag of each kind.
Outline outline() {
  Outline outline;
  outline.globals.push_back({.names = {"--color"}, .takes = Takes::kWord});
  CommandOutline launch{.name = "launch", .help = "", .options = {}, .arguments = {}};
  for (const char* name : {"--set", "--num-processes", "--log-dir", "--config-file"})
    launch.options.push_back({.names = {name}, .takes = Takes::kWord});
  launch.options.push_back({.names = {"--cpu"}});
  outline.commands.push_back(launch);
  return outline;
}

Arguments take_apart(const std::vector<std::string>& arguments) {
  return cli::take_apart(arguments, outline());
}

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

TEST(ArgumentsTest, AScriptBeginsTheProgram) {
  for (const std::vector<std::string>& before : {std::vector<std::string>{"launch"},
                                                 {"launch", "c.yaml"},
                                                 {"launch", "--num_processes", "2", "--cpu"},
                                                 {"launch", "--config_file", "c.yaml"},
                                                 {"launch", "--set", "a=b.py"}}) {
    std::vector<std::string> words = before;
    for (const char* word : {"train.py", "--my_flag", "--", "x.yaml"}) words.emplace_back(word);
    const Arguments a = take_apart(words);
    EXPECT_THAT(a.program, ElementsAre("python3", "train.py", "--my_flag", "--", "x.yaml"));
    EXPECT_EQ(a.own.size(), before.size());
  }
}

TEST(ArgumentsTest, AModuleIsRunByPython) {
  const Arguments a = take_apart({"launch", "c.yaml", "-m", "my.module", "--cpu"});
  EXPECT_THAT(a.own, ElementsAre("launch", "c.yaml"));
  EXPECT_THAT(a.program, ElementsAre("python3", "-m", "my.module", "--cpu"));
}

TEST(ArgumentsTest, AnExecutableIsRunByItself) {
  EXPECT_THAT(take_apart({"launch", "/bin/sh", "-c", "true"}).program, ElementsAre("/bin/sh", "-c", "true"));
  const std::string program = ::testing::TempDir() + "accel_program_without_a_first_line";
  std::ofstream(program) << "exit 0\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_exec);
  EXPECT_THAT(take_apart({"launch", program, "x"}).program, ElementsAre(program, "x"));
  const std::string configuration = program + ".yaml";
  std::filesystem::rename(program, configuration);
  EXPECT_THAT(take_apart({"launch", configuration}).own, ElementsAre("launch", configuration));
  std::filesystem::remove(configuration);
  EXPECT_THAT(take_apart({"launch", "--no_python", "train.py"}).program, ElementsAre("train.py"));
  EXPECT_THAT(take_apart({"launch", "--", "train.py"}).program, ElementsAre("python3", "train.py"));
}

TEST(ArgumentsTest, TheWordBehindAConfigurationIsAProgram) {
  EXPECT_THAT(take_apart({"launch", "c.yaml", "name", "x"}).program, ElementsAre("name", "x"));
  EXPECT_THAT(take_apart({"launch", "--config-file=c", "name"}).program, ElementsAre("name"));
  // Two configurations are an error of the command line.
  EXPECT_THAT(take_apart({"launch", "c.yaml", "d.yaml"}).own, ElementsAre("launch", "c.yaml", "d.yaml"));
  EXPECT_THAT(take_apart({"launch", "configuration"}).own, ElementsAre("launch", "configuration"));
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

TEST(ArgumentsTest, HelpIsAFlagOfTheCommandBehindIt) {
  EXPECT_THAT(with_help_flag({"help"}), ElementsAre("--help"));
  EXPECT_THAT(with_help_flag({"help", "diff"}), ElementsAre("diff", "--help"));
  EXPECT_THAT(with_help_flag({"help", "launch", "--", "true"}),
              ElementsAre("launch", "--help", "--", "true"));
  EXPECT_THAT(with_help_flag({"help", "--json"}), ElementsAre("--help", "--json"));
  EXPECT_THAT(with_help_flag({"diff", "help"}), ElementsAre("diff", "help"));
  EXPECT_THAT(with_help_flag({}), ElementsAre());
}

}  // namespace
}  // namespace accel::cli
