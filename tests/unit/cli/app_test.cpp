#include "cli/app.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace accel::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

struct Result {
  ExitCode code;
  std::string out;
  std::string err;
};

/// Runs accel with --json, because only JSON errors go to the given stream. Others go through the logger.
Result run_json(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "--json");
  std::ostringstream out;
  std::ostringstream err;
  const ExitCode code = run(arguments, out, err);
  return {code, out.str(), err.str()};
}

TEST(AppTest, VersionAndHelpGoToStdout) {
  EXPECT_THAT(run_json({"--version"}).out,
              MatchesRegex("accel [0-9.]+\ncommit [^\n]+\nlibtorch [^\n]+\nNCCL [^\n]+\n"));
  const std::pair<std::vector<std::string>, const char*> helps[] = {
      {{"--help"}, "Exit codes: 0 success"}, {{"launch", "--help"}, "Exit codes: accel help lists them"}};
  for (const auto& [arguments, text] : helps) {
    const Result help = run_json(arguments);
    EXPECT_EQ(help.code, ExitCode::kSuccess);
    EXPECT_THAT(help.out, HasSubstr(text));
    EXPECT_THAT(help.err, IsEmpty());
  }
  EXPECT_THAT(run_json({"launch", "--help"}).out, HasSubstr("Usage: accel launch"));
}

TEST(AppTest, UnknownCommandsAndFlagsNameTheNearest) {
  const std::pair<std::vector<std::string>, const char*> rows[] = {
      {{"lanch"}, R"("message":"unknown command 'lanch'","hint":"did you mean 'launch'?")"},
      {{"train"}, R"("hint":"did you mean 'launch'?")"},
      {{"merge"}, R"("hint":"did you mean 'merge-weights'?")"},
      {{"eval"}, R"("hint":"did you mean 'evaluate'?")"},
      {{"export"}, "`accel-export MODEL_DIRECTORY model.pt2` exports a model"},
      {{"zzzzzzzz"}, R"("hint":"accel help lists the commands")"},
      {{"launch", "a.yaml", "--num-proceses=2"}, R"("hint":"did you mean '--num-processes'?")"},
      {{"launch", "a.yaml", "b.yaml"}, "unexpected argument 'b.yaml'"},
      {{}, "a command is needed"},
      {{"launch"}, "launch needs a configuration file"},
      {{"--color", "pink", "launch"}, "pink"},
  };
  for (const auto& [arguments, text] : rows) {
    const Result result = run_json(arguments);
    EXPECT_EQ(result.code, ExitCode::kUsage) << text;
    EXPECT_THAT(result.err, HasSubstr(text));
    EXPECT_THAT(result.err, StartsWith(R"({"type":"error","kind":"usage","exit_code":2,)"));
    EXPECT_THAT(result.out, IsEmpty());
  }
}

Result run_plain(const std::vector<std::string>& arguments) {
  std::ostringstream out;
  std::ostringstream err;
  const ExitCode code = run(arguments, out, err);
  return {code, out.str(), err.str()};
}

TEST(AppTest, HelpIsACommandToo) {
  EXPECT_EQ(run_plain({"help"}).out, run_plain({"--help"}).out);
  EXPECT_EQ(run_plain({"help", "diff"}).out, run_plain({"diff", "--help"}).out);
  EXPECT_EQ(run_plain({"help", "diff"}).code, ExitCode::kSuccess);
  EXPECT_EQ(run_plain({"help", "zzz"}).code, ExitCode::kUsage);
  EXPECT_EQ(run_plain({"-V"}).out, run_plain({"--version"}).out);
  const Result alone = run_plain({});
  EXPECT_EQ(alone.code, ExitCode::kUsage);
  EXPECT_EQ(alone.out, run_plain({"help"}).out);
}

TEST(AppTest, GlobalFlagsStandAnywhere) {
  std::ostringstream out;
  std::ostringstream err;
  EXPECT_EQ(run({"launch", "none.yaml", "--json", "--quiet"}, out, err), ExitCode::kUsage);
  EXPECT_THAT(err.str(), HasSubstr("none.yaml"));
}

TEST(AppTest, FlagsOfTheConfigurationAreCheckedByIt) {
  EXPECT_THAT(run_json({"launch", "--num_processes", "two", "--", "true"}).err,
              HasSubstr("--num-processes two: 'num_processes' must be an integer, found 'two'"));
  EXPECT_THAT(run_json({"launch", "--max_restarts", "many", "--", "true"}).err,
              HasSubstr("'launch.max_restarts' must be an integer, found 'many'"));
  EXPECT_THAT(run_json({"launch", "--set", "a=1", "--", "true"}).err, HasSubstr("unknown key 'a'"));
}

TEST(AppTest, RunsAProgram) {
  EXPECT_EQ(run_json({"launch", "--num_processes", "2", "--cpu", "--", "true"}).code, ExitCode::kSuccess);
  const Result failed = run_json({"launch", "--cpu", "--", "false"});
  EXPECT_EQ(failed.code, ExitCode::kWorkerFailed);
  EXPECT_THAT(failed.err, HasSubstr("rank 0 of 1 failed: exit code 1"));
}

}  // namespace
}  // namespace accel::cli
