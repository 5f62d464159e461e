#include "train/checkpoint/save_checks.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "base/error.hpp"
#include "temp_dir.hpp"

namespace accel::train {
namespace {

using ::testing::HasSubstr;
using testing::read_file;
using testing::TempDir;
using testing::write_file;

TEST(SaveChecksTest, TooLittleSpaceIsAnError) {
  const TempDir dir;
  require_space(dir.path(), 1);
  try {
    require_space(dir.path(), std::numeric_limits<std::uint64_t>::max() / 2);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kFailure);
    EXPECT_THAT(error.message(), HasSubstr("a checkpoint takes 9223"));
    EXPECT_THAT(error.advice(), HasSubstr("total_limit"));
  }
}

TEST(SaveChecksTest, WhatTheDiskHasIsComparedWithWhatWasWritten) {
  const TempDir dir;
  // More than is read at once, so that the sum goes over several blocks.
  const std::string text(9'000'001, 'x');
  ckpt::SummedFile file(dir / "data");
  file.append(text);
  const ckpt::FileSummary summary = file.finish();
  require_same_on_disk(dir.path(), summary);

  std::string changed = text;
  changed[8'500'000] = 'y';
  write_file(dir / "data", changed);
  EXPECT_THROW(require_same_on_disk(dir.path(), summary), Error);
  write_file(dir / "data", text.substr(1));
  EXPECT_THROW(require_same_on_disk(dir.path(), summary), Error);
  write_file(dir / "data", text);
  require_same_on_disk(dir.path(), summary);
}

}  // namespace
}  // namespace accel::train
