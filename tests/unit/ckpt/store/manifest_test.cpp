#include "ckpt/store/manifest.hpp"

#include <gmock/gmock.h>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::TempDir;
using testing::write_file;

TEST(ManifestTest, IsReadAsItWasWritten) {
  const TempDir dir;
  Manifest manifest;
  manifest.step = 7;
  manifest.world_size = 2;
  manifest.files = {{"model/__0_0.distcp", {12, 0xdeadbeef}}, {"scaler.json", {0, 0}}};
  manifest.tensors = {{"model.w", {"float32", {2, 3}}}, {"model.scalar", {"int8", {}}}};
  manifest.tied = {{"model.head", "model.w"}};
  write_file(dir / kManifestName, encode_manifest(manifest));
  const Manifest found = parse_manifest(dir / kManifestName);
  EXPECT_EQ(found.step, 7);
  EXPECT_EQ(found.world_size, 2);
  ASSERT_EQ(found.files.size(), 2U);
  EXPECT_EQ(found.files.at("model/__0_0.distcp").bytes, 12U);
  EXPECT_EQ(found.files.at("model/__0_0.distcp").crc32, 0xdeadbeefU);
  EXPECT_EQ(found.tensors, manifest.tensors);
  EXPECT_EQ(found.tied, manifest.tied);
}

TEST(ManifestTest, AnEmptyOneHasItsKeys) {
  EXPECT_EQ(encode_manifest({}), R"({
  "files": [],
  "step": 0,
  "tensors": {},
  "version": 1,
  "world_size": 0
})");
}

TEST(ManifestTest, WhatIsNotAManifestIsCorrupt) {
  const TempDir dir;
  const auto rejection = [&](const char* text) {
    write_file(dir / kManifestName, text);
    return error_of(ErrorKind::kCorrupt, [&] { (void)parse_manifest(dir / kManifestName); });
  };
  EXPECT_THAT(rejection("{"), HasSubstr("cannot be read"));
  EXPECT_THAT(rejection("[]"), HasSubstr("cannot be read"));
  EXPECT_THAT(rejection(R"({"version": 0})"), HasSubstr("is of version 0"));
  EXPECT_THAT(
      rejection(R"({"version": 1, "files": [{"name": "../x", "bytes": 1, "crc32": 1}], "tensors": {}})"),
      HasSubstr("lists '../x', which is not in the directory"));
}

TEST(ManifestTest, ANewerVersionIsNotDamage) {
  const TempDir dir;
  write_file(dir / kManifestName, R"({"version": 2})");
  const std::string said = error_of(ErrorKind::kUsage, [&] { (void)parse_manifest(dir / kManifestName); });
  EXPECT_THAT(said, HasSubstr("is of version 2, and this accel reads 1"));
}

}  // namespace
}  // namespace accel::ckpt
