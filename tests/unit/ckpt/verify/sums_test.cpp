#include "ckpt/verify/sums.hpp"

#include <gmock/gmock.h>

#include <rapidcheck/gtest.h>

#include "ckpt/io/crc32.hpp"
#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::bytes_of;
using ::testing::HasSubstr;
using testing::pattern;
using testing::TempDir;
using testing::write_file;

SumClaim claim_of(const std::filesystem::path& file, const std::string& data, std::uint64_t begin,
                  std::uint64_t length) {
  return {file, begin, length, crc32(bytes_of(std::string_view(data).substr(begin, length)))};
}

void ignore_progress(std::uint64_t) {}

TEST(CheckSumsTest, LargeOverlappingAndEmptyClaimsHold) {
  const TempDir dir;
  const std::string data = pattern(11'000'003, 7);  // More than two blocks.
  write_file(dir / "a", data);
  const std::vector<SumClaim> claims{
      claim_of(dir / "a", data, 0, data.size()), claim_of(dir / "a", data, 5, 10'000'000),
      claim_of(dir / "a", data, 4'194'304, 1),   claim_of(dir / "a", data, 10'999'999, 4),
      claim_of(dir / "a", data, 77, 0),
  };
  std::uint64_t reported = 0;
  const auto results = check_sums(claims, 3, [&](std::uint64_t bytes) { reported += bytes; });
  for (const auto& result : results) EXPECT_FALSE(result.has_value()) << *result;
  EXPECT_EQ(reported, data.size());
  EXPECT_EQ(bytes_of_claims(claims), data.size());
}

TEST(CheckSumsTest, SaysWhichClaimDoesNotHold) {
  const TempDir dir;
  std::string data = pattern(100'000, 3);
  write_file(dir / "good", data);
  std::vector<SumClaim> claims{claim_of(dir / "good", data, 10, 50), claim_of(dir / "bad", data, 0, 500),
                               claim_of(dir / "bad", data, 500, 500), claim_of(dir / "bad", data, 0, 2000)};
  data[499] ^= 1;
  write_file(dir / "bad", data);
  const auto results = check_sums(claims, 2, ignore_progress);
  EXPECT_FALSE(results[0].has_value());
  ASSERT_TRUE(results[1].has_value());
  EXPECT_THAT(*results[1], HasSubstr("is expected"));
  EXPECT_FALSE(results[2].has_value());
  EXPECT_TRUE(results[3].has_value());
}

TEST(CheckSumsTest, WhatCannotBeReadIsSaidAndHidesNothingElse) {
  const TempDir dir;
  const std::string data = pattern(9'000'000, 3);
  const std::vector<SumClaim> claims{claim_of(dir / "short", data, 0, 1000),
                                     claim_of(dir / "short", data, 8'000'000, 1'000'000),
                                     claim_of(dir / "missing", data, 0, 10)};
  write_file(dir / "short", std::string_view(data).substr(0, 8'500'000));
  const auto results = check_sums(claims, 2, ignore_progress);
  EXPECT_FALSE(results[0].has_value());
  ASSERT_TRUE(results[1].has_value());
  EXPECT_THAT(*results[1], HasSubstr("ends at byte 8500000"));
  ASSERT_TRUE(results[2].has_value());
  EXPECT_THAT(*results[2], HasSubstr("cannot open"));
}

RC_GTEST_PROP(CheckSumsTest, AnyClaimsOfAnyFilesAreJudgedAsIfReadAlone, ()) {
  const TempDir dir;
  const std::string data = pattern(5000, 1);
  write_file(dir / "0", data);
  write_file(dir / "1", data);
  std::vector<SumClaim> claims;
  std::vector<bool> wrong;
  const auto count = *rc::gen::inRange<std::size_t>(0, 20);
  for (std::size_t i = 0; i < count; ++i) {
    const auto begin = *rc::gen::inRange<std::uint64_t>(0, 5001);
    const auto length = *rc::gen::inRange<std::uint64_t>(0, 5001 - begin);
    claims.push_back(claim_of(dir / (*rc::gen::arbitrary<bool>() ? "1" : "0"), data, begin, length));
    wrong.push_back(*rc::gen::arbitrary<bool>());
    if (wrong.back()) claims.back().crc32 ^= 1;
  }
  const auto results = check_sums(claims, 1 + static_cast<unsigned>(count % 3), ignore_progress);
  for (std::size_t i = 0; i < count; ++i) RC_ASSERT(results[i].has_value() == wrong[i]);
}

}  // namespace
}  // namespace accel::ckpt
