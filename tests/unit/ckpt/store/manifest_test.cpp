#include "ckpt/store/manifest.hpp"

#include <fmt/format.h>
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

TEST(ManifestTest, NumbersAreWholeAndInTheirRange) {
  const TempDir dir;
  const auto rejection = [&](const std::string& text) {
    write_file(dir / kManifestName, text);
    return error_of(ErrorKind::kCorrupt, [&] { (void)parse_manifest(dir / kManifestName); });
  };
  const auto with_file = [&](const char* numbers) {
    return rejection(
        fmt::format(R"({{"version": 1, "files": [{{"name": "a/b", {}}}], "tensors": {{}}}})", numbers));
  };
  EXPECT_THAT(with_file(R"("bytes": 1.5, "crc32": 1)"),
              HasSubstr("'bytes' of 'a/b' is 1.5, not a whole number"));
  EXPECT_THAT(with_file(R"("bytes": -1, "crc32": 1)"), HasSubstr("'bytes' of 'a/b' is -1, not"));
  EXPECT_THAT(with_file(R"("bytes": 18446744073709551615, "crc32": 1)"),
              HasSubstr("'bytes' of 'a/b' is 184"));
  EXPECT_THAT(with_file(R"("bytes": true, "crc32": 1)"), HasSubstr("'bytes' of 'a/b' is true"));
  EXPECT_THAT(with_file(R"("bytes": 1, "crc32": 4294967296)"),
              HasSubstr("'crc32' of 'a/b' is 4294967296, not a whole number of 0 to 4294967295"));
  EXPECT_THAT(with_file(R"("bytes": 1, "crc32": 0.5)"), HasSubstr("'crc32' of 'a/b' is 0.5"));
  const auto with = [&](const char* key_and_value) {
    return rejection(fmt::format(R"({{"version": 1, {}, "files": [], "tensors": {{}}}})", key_and_value));
  };
  EXPECT_THAT(with(R"("step": 2.5)"), HasSubstr("'step' is 2.5"));
  EXPECT_THAT(with(R"("step": -3)"), HasSubstr("'step' is -3"));
  EXPECT_THAT(with(R"("world_size": 4294967297)"), HasSubstr("'world_size' is 4294967297"));
  EXPECT_THAT(with(R"("world_size": 1e3)"), HasSubstr("'world_size' is 1000.0"));
  const auto with_shape = [&](const char* shape) {
    return rejection(fmt::format(
        R"({{"version": 1, "files": [], "tensors": {{"w": {{"dtype": "float32", "shape": {}}}}}}})", shape));
  };
  EXPECT_THAT(with_shape("[2, 1.5]"), HasSubstr("'shape' of 'w' is 1.5"));
  EXPECT_THAT(with_shape("[-2]"), HasSubstr("'shape' of 'w' is -2"));
  EXPECT_THAT(with_shape("2"), HasSubstr("'shape' of 'w' is 2, not a list"));
}

TEST(ManifestTest, ANewerVersionIsNotDamage) {
  const TempDir dir;
  write_file(dir / kManifestName, R"({"version": 2})");
  const std::string said = error_of(ErrorKind::kUsage, [&] { (void)parse_manifest(dir / kManifestName); });
  EXPECT_THAT(said, HasSubstr("is of version 2, and this accel reads 1"));
}

}  // namespace
}  // namespace accel::ckpt
