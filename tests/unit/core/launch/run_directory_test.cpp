#include "core/launch/run_directory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.hpp"
#include "core/config/keys/document.hpp"
#include "temp_dir.hpp"

namespace accel::launch {
namespace {

using accel::testing::TempDir;
using accel::testing::write_file;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class RunDirectoryTest : public ::testing::Test {
 protected:
  RunDirectoryTest() {
    loaded_.config.training.emplace();
    loaded_.config.training->output_dir = out_;
    loaded_.config.training->checkpoint.every = 5;
    loaded_.settings.set("training.output_dir",
                         {out_.string(), {config::Origin::Layer::kFlag, "--set training.output_dir=out"}});
  }

  std::string error_of_claim() {
    try {
      const auto lock = claim_output(loaded_, "run-1");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      return error.message();
    }
    return "no error";
  }

  TempDir dir_;
  std::filesystem::path out_ = dir_ / "runs/out";
  config::LoadedConfig loaded_;
};

TEST_F(RunDirectoryTest, IsMadeAndLockedForOneRun) {
  {
    const auto lock = claim_output(loaded_, "run-1");
    EXPECT_TRUE(std::filesystem::is_directory(out_));
    EXPECT_THAT(error_of_claim(), AllOf(StartsWith("--set training.output_dir=out: 'training.output_dir': "),
                                        HasSubstr("another run is writing into")));
  }
  EXPECT_EQ(error_of_claim(), "no error");
}

TEST_F(RunDirectoryTest, LogsLieBelowTheOutputUnlessTheyHaveAPlace) {
  EXPECT_EQ(log_root(loaded_.config), out_ / "logs");
  loaded_.config.launch.log_dir = dir_ / "elsewhere";
  EXPECT_EQ(log_root(loaded_.config), dir_ / "elsewhere");
  write_file(dir_ / "elsewhere", "");
  try {
    make_log_directory(dir_ / "elsewhere/attempt_0", loaded_);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), StartsWith("'launch.log_dir': "));
  }
  EXPECT_EQ(log_root(config::Config{}), std::filesystem::path());
}

TEST_F(RunDirectoryTest, TheResolvedConfigurationReadsBack) {
  std::filesystem::create_directories(out_);
  const std::filesystem::path file = write_resolved(loaded_.config);
  EXPECT_EQ(file, out_ / "config.resolved.json");
  const config::Config read =
      config::config_from_json(nlohmann::json::parse(accel::testing::read_file(file)));
  EXPECT_EQ(read.training->checkpoint.every, 5);
}

}  // namespace
}  // namespace accel::launch
