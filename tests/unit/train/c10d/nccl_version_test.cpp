#include "train/c10d/nccl_version.hpp"

#include <gtest/gtest.h>

namespace accel::train {
namespace {

constexpr NcclVersion kOld{2, 21, 5};
constexpr NcclVersion kNew{2, 27, 3};

TEST(NcclVersionTest, OfWhatTheLibraryGives) {
  EXPECT_EQ(NcclVersion::of_code(22703).text(), "2.27.3");
  EXPECT_EQ(NcclVersion::of_code(2708).text(), "2.7.8");
  EXPECT_EQ(NcclVersion::of_code(20905).text(), "2.9.5");
}

TEST(NcclVersionTest, TheSameEverywhereFits) { EXPECT_EQ(nccl_mismatch({kNew, kNew, kNew}), std::nullopt); }

TEST(NcclVersionTest, PatchesAndNewerLibrariesFit) {
  EXPECT_EQ(nccl_mismatch({kNew, {2, 27, 7}, {2, 27, 1}}), std::nullopt);
  EXPECT_EQ(nccl_mismatch({kOld, kOld, kNew}), std::nullopt);
}

TEST(NcclVersionTest, AnotherHeaderThanLibtorchsIsRefused) {
  EXPECT_EQ(nccl_mismatch({kOld, kNew, kNew}),
            "accel was compiled with NCCL 2.21.5, but libtorch with NCCL 2.27.3");
  EXPECT_NE(nccl_mismatch({kNew, kOld, kNew}), std::nullopt);
  EXPECT_NE(nccl_mismatch({{3, 27, 3}, kNew, kNew}), std::nullopt);
}

TEST(NcclVersionTest, AnOlderLibraryOrOneOfAnotherMajorVersionIsRefused) {
  EXPECT_EQ(nccl_mismatch({kNew, kNew, kOld}),
            "accel and libtorch were compiled with NCCL 2.27.3, but the loaded library is NCCL 2.21.5");
  EXPECT_NE(nccl_mismatch({kNew, kNew, {3, 27, 3}}), std::nullopt);
  EXPECT_NE(nccl_mismatch({kNew, kNew, {}}), std::nullopt) << "a library that does not tell its version";
}

}  // namespace
}  // namespace accel::train
