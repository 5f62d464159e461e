#include "core/launch/cluster/run_secret.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "base/error.hpp"
#include "base/log.hpp"
#include "temp_dir.hpp"

namespace accel::launch {
namespace {

class RunSecretTest : public ::testing::Test {
 protected:
  accel::testing::TempDir directory_;
  std::filesystem::path file_ = directory_.path() / "run_secret";
};

TEST_F(RunSecretTest, TheFileIsReadableByItsOwnerAlone) {
  const std::string secret = make_run_secret(file_);
  struct stat status {};
  ASSERT_EQ(::stat(file_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0600U);
  EXPECT_EQ(read_run_secret(file_), secret);
  // Nothing else is left in the directory.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_.path()), {}), 1);
}

TEST_F(RunSecretTest, ASecretStays) {
  const std::string secret = make_run_secret(file_);
  EXPECT_EQ(make_run_secret(file_), secret);
}

TEST_F(RunSecretTest, AFileThatOthersCanReadIsAWarning) {
  static_cast<void>(make_run_secret(file_));
  ASSERT_EQ(::chmod(file_.c_str(), 0640), 0);
  std::string lines;
  const log::Redirect redirect([&](std::string_view line) { lines += line; });
  static_cast<void>(read_run_secret(file_));
  EXPECT_THAT(lines, ::testing::HasSubstr("is open to other users (mode 0640"));
}

TEST_F(RunSecretTest, AnotherContentIsRefused) {
  EXPECT_EQ(read_run_secret(file_), std::nullopt);
  std::ofstream(file_) << "letmein\n";
  EXPECT_THROW(static_cast<void>(read_run_secret(file_)), Error);
  EXPECT_THROW(static_cast<void>(make_run_secret(file_)), Error);
}

TEST_F(RunSecretTest, TheVariableHasSixteenCharactersAtLeast) {
  const auto with = [](const char* value) {
    return [value](const std::string&) { return std::optional<std::string>(value); };
  };
  EXPECT_EQ(run_secret_in([](const std::string&) { return std::nullopt; }), "");
  EXPECT_EQ(run_secret_in(with("")), "");
  EXPECT_EQ(run_secret_in(with("0123456789abcdef")), "0123456789abcdef");
  EXPECT_THROW(static_cast<void>(run_secret_in(with("0123456789abcde"))), Error);
}

}  // namespace
}  // namespace accel::launch
