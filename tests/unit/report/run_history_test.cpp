#include "report/run_history.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "temp_dir.hpp"

namespace accel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using testing::TempDir;
using testing::write_file;

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.message();
  }
  return "no error";
}

TEST(RunHistoryTest, NumbersAreCurvesByTheirNames) {
  const RunHistory run = parse_metrics(
      "{\"step\":5,\"loss\":2.5,\"lr\":1,\"time\":100,\"attempt\":0}\n"
      "{\"step\":5,\"checkpoint\":\"a path\",\"bytes\":7,\"time\":101,\"attempt\":0}\n"
      "{\"step\":10,\"loss\":null,\"time\":110.5,\"attempt\":0}\n",
      "file");
  ASSERT_EQ(run.curves.at("loss").size(), 2U);
  EXPECT_EQ(run.curves.at("loss")[0].step, 5);
  EXPECT_EQ(run.curves.at("loss")[0].value, 2.5);
  EXPECT_EQ(run.curves.at("loss")[1].step, 10);
  EXPECT_TRUE(std::isnan(run.curves.at("loss")[1].value));
  EXPECT_EQ(run.curves.at("bytes")[0].value, 7);
  for (const char* name : {"step", "time", "attempt", "checkpoint"}) EXPECT_FALSE(run.curves.contains(name));
  EXPECT_EQ(run.first_time, 100);
  EXPECT_EQ(run.last_time, 110.5);
}

TEST(RunHistoryTest, AttemptsBeginWhereTheirNumberChanges) {
  const RunHistory run = parse_metrics(
      "{\"step\":1,\"loss\":1,\"attempt\":0}\n"
      "{\"step\":2,\"run_time_s\":9,\"data_s\":1,\"attempt\":0}\n"
      "{\"step\":3,\"loss\":1,\"attempt\":2}\n"
      "{\"step\":4,\"loss\":1,\"attempt\":2}\n",
      "file");
  ASSERT_EQ(run.attempts.size(), 2U);
  EXPECT_EQ(run.attempts[1].number, 2);
  EXPECT_EQ(run.attempts[1].first_step, 3);
  EXPECT_THAT(run.attempts[0].time_spent_s, ElementsAre(Pair("data_s", 1), Pair("run_time_s", 9)));
  EXPECT_TRUE(run.attempts[1].time_spent_s.empty());
  EXPECT_FALSE(run.curves.contains("data_s"));
}

TEST(RunHistoryTest, ALineThatIsBeingWrittenIsLeftOut) {
  EXPECT_EQ(parse_metrics("{\"step\":1,\"loss\":1}\n{\"step\":2,\"lo", "file").curves.at("loss").size(), 1U);
  EXPECT_TRUE(parse_metrics("", "file").curves.empty());
}

TEST(RunHistoryTest, NamesTheLineThatIsNotARecord) {
  for (const char* line :
       {"", "[]", "7", "{}", "{\"step\":\"1\"}", "{\"step\":1.5}", "{\"step\":null}", "{\"step\":1"})
    EXPECT_THAT(error_of([&] { (void)parse_metrics(std::string("{\"step\":1}\n") + line + "\n", "file"); }),
                HasSubstr("'file', line 2: it is not a JSON object with a whole number 'step'"))
        << line;
}

TEST(RunHistoryTest, SettingsHaveDottedPaths) {
  EXPECT_THAT(flat_settings(nlohmann::json::parse(R"({"a":{"b":{"c":1.5},"list":[1,"x"]},"t":"<b>"})")),
              ElementsAre(Pair("a.b.c", "1.5"), Pair("a.list", "[1,\"x\"]"), Pair("t", "\"<b>\"")));
}

TEST(RunHistoryTest, AFolderThatIsNotARunIsRefused) {
  const TempDir dir;
  const auto read = [&](const char* name) {
    return error_of([&] { (void)read_run_history(dir / name, name); });
  };
  EXPECT_THAT(read("."), HasSubstr("is not the output_dir of a training: it has no metrics.jsonl"));
  EXPECT_THAT(read("nothing"), HasSubstr("there is no such directory"));
  std::filesystem::create_directories(dir / "metrics.jsonl");
  EXPECT_THAT(read("."), HasSubstr("it has no metrics.jsonl"));
}

TEST(RunHistoryTest, SettingsMayBeMissingButNotBroken) {
  const TempDir dir;
  write_file(dir / "metrics.jsonl", "{\"step\":1,\"loss\":1}\n");
  EXPECT_TRUE(read_run_history(dir.path(), "x").settings.empty());
  write_file(dir / "config.resolved.json", "{\"seed\":");
  EXPECT_THAT(error_of([&] { (void)read_run_history(dir.path(), "x"); }), HasSubstr("config.resolved.json"));
  write_file(dir / "config.resolved.json", "{\"seed\":7}");
  const RunHistory run = read_run_history(dir.path(), "x");
  EXPECT_EQ(run.name, "x");
  EXPECT_THAT(run.settings, ElementsAre(Pair("seed", "7")));
}

}  // namespace
}  // namespace accel
