#include "ckpt/verify/finding.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace accel::ckpt {
namespace {

TEST(FindingTest, SaysOnlyWhatIsKnown) {
  EXPECT_EQ(to_string(Finding{FindingKind::kHole, "", "w", 0, 0, "is not whole"}), "hole: 'w': is not whole");
  EXPECT_EQ(to_string(Finding{FindingKind::kChecksum, "f", "w", 4, 8, "differs"}),
            "checksum: f, bytes 4 to 8, 'w': differs");
  EXPECT_EQ(to_string(Finding{FindingKind::kStale, "f", "", 0, 0, "is left"}), "stale: f: is left");
  EXPECT_EQ(to_string(Finding{FindingKind::kTimes, "", "", 0, 0, "odd"}), "times: odd");
}

TEST(FindingTest, AreSortedByPlaceAndListedOnce) {
  const Finding late{FindingKind::kChecksum, "a", "w", 9, 12, "x"};
  const Finding early{FindingKind::kTruncated, "a", "z", 1, 2, "x"};
  const Finding other{FindingKind::kChecksum, "b", "w", 0, 0, "x"};
  std::vector<Finding> findings{other, late, early, late};
  sort_findings(findings);
  EXPECT_EQ(findings, (std::vector<Finding>{early, late, other}));
}

TEST(FindingTest, EveryKindHasANameOfItsOwn) {
  std::vector<std::string_view> names;
  for (int kind = 0; kind <= static_cast<int>(FindingKind::kTimes); ++kind) {
    const std::string_view name = name_of(static_cast<FindingKind>(kind));
    EXPECT_EQ(std::count(names.begin(), names.end(), name), 0) << name;
    EXPECT_NE(name, "unknown");
    names.push_back(name);
  }
}

}  // namespace
}  // namespace accel::ckpt
