#include "core/launch/find_program.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/error.hpp"
#include "temp_dir.hpp"

namespace accel::launch {
namespace {

using accel::testing::TempDir;
using accel::testing::write_file;
using ::testing::AllOf;
using ::testing::HasSubstr;

class FindTest : public ::testing::Test {
 protected:
  std::filesystem::path program(const std::string& name) {
    const auto path = dir_ / name;
    std::filesystem::create_directories(path.parent_path());
    write_file(path, "#!/bin/sh\n");
    ::chmod(path.c_str(), 0755);
    return path;
  }

  [[nodiscard]] Environment with(const std::string& variable, const std::string& value) const {
    return [=](const std::string& name) { return name == variable ? std::optional(value) : std::nullopt; };
  }

  template <class Action>
  std::string error_of(Action&& action) {
    try {
      (void)action();
    } catch (const Error& error) {
      return error.message() + " | " + error.advice();
    }
    return "no error";
  }

  TempDir dir_;
  Environment empty_ = [](const std::string&) { return std::nullopt; };
};

TEST_F(FindTest, WorkerOfAnInstalledExecutable) {
  const auto worker = program("libexec/accel/accel-worker");
  EXPECT_EQ(find_worker(dir_ / "bin/accel", {}, with("ACCEL_WORKER", "")), worker);
}

TEST_F(FindTest, WorkerOfABuildTree) {
  const auto worker = program("src/train/accel-worker");
  EXPECT_EQ(find_worker(dir_ / "src/cli/accel", {}, empty_), worker);
}

TEST_F(FindTest, WorkerOfAWheelForTheNewestPython) {
  program("lib/python3/site-packages/accel_worker/accel-worker");
  EXPECT_THAT(error_of([&] { return find_worker(dir_ / "bin/accel", {}, empty_); }),
              HasSubstr("accel-worker is not installed beside"));
  const auto older = program("lib/python3.9/site-packages/accel_worker/accel-worker");
  EXPECT_EQ(find_worker(dir_ / "bin/accel", {}, empty_), older);
  const auto newer = program("lib64/python3.11/site-packages/accel_worker/accel-worker");
  EXPECT_EQ(find_worker(dir_ / "bin/accel", {}, empty_), newer);
  const auto installed = program("libexec/accel/accel-worker");
  EXPECT_EQ(find_worker(dir_ / "bin/accel", {}, empty_), installed);
}

TEST_F(FindTest, WorkerFromTheEnvironmentOrTheConfiguration) {
  const auto named = program("elsewhere");
  EXPECT_EQ(find_worker(dir_ / "bin/accel", {}, with("ACCEL_WORKER", named.string())), named);
  program("libexec/accel/accel-worker");
  EXPECT_EQ(find_worker(dir_ / "bin/accel", {}, with("ACCEL_WORKER", named.string())), named);
  EXPECT_EQ(find_worker(dir_ / "bin/accel", named, with("ACCEL_WORKER", "/bin/sh")), named);
}

TEST_F(FindTest, NoWorkerIsAnErrorThatSaysWhatToDo) {
  EXPECT_THAT(error_of([&] { return find_worker(dir_ / "bin/accel", {}, empty_); }),
              AllOf(HasSubstr("tools/dev package"), HasSubstr("ACCEL_WORKER")));
  EXPECT_THAT(error_of([&] { return find_worker(dir_ / "bin/accel", dir_ / "no", empty_); }),
              HasSubstr("no' is not an executable file"));
  EXPECT_THAT(error_of([&] { return find_worker(dir_ / "bin/accel", {}, with("ACCEL_WORKER", "/no")); }),
              HasSubstr("'/no' is not an executable file"));
}

TEST_F(FindTest, ProgramsAlongPathAndBySlash) {
  const auto tool = program("bin/tool");
  EXPECT_EQ(find_program("tool", with("PATH", "/nowhere:" + (dir_ / "bin").string())), tool);
  EXPECT_EQ(find_program(tool.string(), empty_), tool);
  EXPECT_THAT(error_of([&] { return find_program("tool", with("PATH", "/nowhere")); }),
              HasSubstr("not found along PATH"));
  EXPECT_THAT(error_of([&] { return find_program("./no", empty_); }), HasSubstr("does not exist"));
  write_file(dir_ / "train.py", "");
  EXPECT_THAT(error_of([&] { return find_program((dir_ / "train.py").string(), empty_); }),
              HasSubstr("is not executable"));
}

}  // namespace
}  // namespace accel::launch
