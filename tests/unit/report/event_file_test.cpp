#include "report/event_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "temp_dir.hpp"

namespace accel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::read_file;
using ::testing::StartsWith;
using testing::TempDir;
using testing::write_file;

std::vector<std::string> names_in(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

/// TensorBoard reads the files in the order of their names.
TEST(EventFileTest, ANewFileComesBehindThoseThatAreThere) {
  const TempDir dir;
  const std::string earlier = "events.out.tfevents.9000000000.another-host.7.0";
  write_file(dir / earlier, "");
  write_file(dir / "events.out.tfevents.99999999999999999999.x", "");  // No name of TensorBoard.
  for (int i = 0; i < 2; ++i) EventFile(dir.path()).open(3);
  EXPECT_THAT(names_in(dir.path()), ElementsAre(earlier, StartsWith("events.out.tfevents.9000000001."),
                                                StartsWith("events.out.tfevents.9000000002."),
                                                "events.out.tfevents.99999999999999999999.x"));
  EXPECT_EQ(read_file(dir / earlier), "");
}

TEST(EventFileTest, EachRecordIsInTheFileAtOnce) {
  const TempDir dir;
  EventFile events(dir / "new/folder");
  events.open(0);
  const std::filesystem::path file = dir / "new/folder" / names_in(dir / "new/folder").at(0);
  const std::string begin = read_file(file);
  EXPECT_THAT(begin, HasSubstr("brain.Event:2"));
  events.write({{"step", 1}, {"loss", 0.5}, {"time", 2.0}, {"attempt", 0}});
  const std::string one = read_file(file);
  EXPECT_THAT(one, StartsWith(begin));
  EXPECT_THAT(one.substr(begin.size()), HasSubstr("train/loss"));
  events.write({{"step", 1}, {"checkpoint_error", "a full disk"}, {"time", 2.0}, {"attempt", 0}});
  EXPECT_EQ(read_file(file), one);  // It has nothing that a curve could show.
}

TEST(EventFileTest, AFolderThatCannotBeMadeIsAnError) {
  const TempDir dir;
  write_file(dir / "file", "");
  EXPECT_THROW(EventFile(dir / "file").open(0), Error);
}

TEST(EventFileTest, TagsSayWhatANumberIsOf) {
  const Metrics step = {{"step", 1}, {"loss", 0.5}, {"lr", 1}, {"time", 2.0}, {"attempt", 0}};
  EXPECT_EQ(scalar_tag(step, "loss"), "train/loss");
  EXPECT_EQ(scalar_tag(step, "lr"), "train/lr");
  for (const char* name : {"step", "time", "attempt"}) EXPECT_EQ(scalar_tag(step, name), "");
  EXPECT_EQ(scalar_tag({{"step", 1}, {"eval_perplexity", 2}}, "eval_perplexity"), "eval/perplexity");
  const Metrics saved = {{"step", 1}, {"checkpoint", "out/checkpoint_1"}, {"stall_s", 0.25}};
  EXPECT_EQ(scalar_tag(saved, "stall_s"), "checkpoint/stall_s");
  EXPECT_EQ(scalar_tag(saved, "checkpoint"), "");
  EXPECT_EQ(scalar_tag({{"step", 9}, {"run_time_s", 2.0}, {"data_s", 1.0}}, "data_s"), "");
}

}  // namespace
}  // namespace accel
