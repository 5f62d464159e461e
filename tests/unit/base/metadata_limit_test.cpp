#include "base/metadata_limit.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace accel {
namespace {

using ::testing::HasSubstr;

class MetadataLimitTest : public ::testing::Test {
 protected:
  void TearDown() override { ::unsetenv(kMetadataLimitVariable); }
};

TEST_F(MetadataLimitTest, IsAGigabyteUnlessTheEnvironmentSaysOtherwise) {
  EXPECT_EQ(metadata_limit(), 1'000'000'000u);
  ::setenv(kMetadataLimitVariable, "4GB", 1);
  EXPECT_EQ(metadata_limit(), 4'000'000'000u);
  ::setenv(kMetadataLimitVariable, "much", 1);
  EXPECT_THROW((void)metadata_limit(), Error);
  ::setenv(kMetadataLimitVariable, "0", 1);
  EXPECT_THROW((void)metadata_limit(), Error);
}

TEST_F(MetadataLimitTest, TheErrorNamesTheLimitAndHowToRaiseIt) {
  EXPECT_NO_THROW(check_metadata_bytes("the header", 1'000'000'000));
  try {
    check_metadata_bytes("the header", 4'100'000'000);
    FAIL() << "beyond the limit";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
    EXPECT_THAT(error.message(), HasSubstr("the header would take at least 4.10 GB of memory"));
    EXPECT_THAT(error.message(), HasSubstr("1.00 GB"));
    EXPECT_THAT(error.advice(), HasSubstr("ACCEL_MAX_METADATA"));
  }
}

}  // namespace
}  // namespace accel
