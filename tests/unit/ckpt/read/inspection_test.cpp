#include "ckpt/read/inspection.hpp"

#include <gmock/gmock.h>

#include "ckpt/pickle/writer.hpp"
#include "ckpt/torch/archive.hpp"
#include "ckpt/torch/tensor.hpp"
#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::bytes_of;
using ::testing::ElementsAre;
using testing::error_of;
using testing::flat_split;
using testing::TempDir;
using testing::Truth;
using testing::write_checkpoint;
using testing::write_file;

TEST(InspectionTest, ListsADcpCheckpoint) {
  const TempDir dir;
  const Truth truth = Truth::make({"model", "w"}, DType::kBFloat16, {4, 3}, 1);
  write_checkpoint(dir.path(), {truth}, flat_split({truth}, 2), {{{"lr"}, 0.5}});
  const Inspection found = inspect(dir.path());
  EXPECT_EQ(found.kind, Kind::kDcp);
  ASSERT_EQ(found.tensors.size(), 1U);
  EXPECT_EQ(found.tensors[0].bytes, 24U);
  EXPECT_EQ(found.tensors[0].chunks, 2U);
  EXPECT_THAT(found.tensors[0].files, ElementsAre("__0_0.distcp", "__1_0.distcp"));
  ASSERT_EQ(found.objects.size(), 1U);
  EXPECT_EQ(found.objects[0].value, "0.5");
  EXPECT_EQ(found.metadata.at("version"), "1.0.0");
  EXPECT_EQ(found.files.size(), 2U);

  std::filesystem::remove(dir / "__1_0.distcp");
  EXPECT_TRUE(inspect(dir.path()).files[1].missing);
}

TEST(InspectionTest, FindsTensorsInAnyPickle) {
  const TempDir dir;
  const pickle::Value tensor = pickle_of_tensor(DType::kFloat32, {2, 2}, "0");
  const pickle::Value module =
      pickle::instance(pickle::Global("__torch__", "Net"), pickle::Dict{{{"weight", tensor}}});
  const pickle::Value root = pickle::Dict{{{"step", 7}, {"list", pickle::List{{tensor}}}, {"net", module}}};
  const std::uint64_t bytes = 16;
  {
    SummedFile file(dir / "m.pt");
    TorchArchive(pickle::write(root), {&bytes, 1}).write(file, [](std::size_t) {
      return bytes_of("0123456789abcdef");
    });
    file.finish();
  }
  const Inspection found = inspect(dir / "m.pt");
  EXPECT_EQ(found.kind, Kind::kTorch);
  ASSERT_EQ(found.tensors.size(), 2U);
  EXPECT_EQ(found.tensors[0].name, "list.0");
  EXPECT_EQ(found.tensors[1].name, "net.weight");
  EXPECT_EQ(found.objects.at(0).name, "step");
  EXPECT_EQ(found.files.size(), 7U);
}

TEST(InspectionTest, ADirectoryGivesAllThatIsInIt) {
  const TempDir dir;
  const Truth truth = Truth::make({"w"}, DType::kInt8, {3}, 1);
  write_checkpoint(dir / "a/pytorch_model_fsdp_0", {truth}, flat_split({truth}, 1));
  write_checkpoint(dir / "a/optimizer_0", {truth}, flat_split({truth}, 1));
  const std::vector<Inspection> found = inspect_all(dir.path()).checkpoints;
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].path, dir / "a/optimizer_0");
}

TEST(InspectionTest, SaysWhatIsMissingOrBroken) {
  const TempDir dir;
  (void)error_of(ErrorKind::kMissing, [&] { (void)inspect_all(dir / "nothing"); });
  (void)error_of(ErrorKind::kMissing, [&] { (void)inspect_all(dir.path()); });
  write_file(dir / "__0_0.distcp", "");
  EXPECT_EQ(inspect_all(dir.path()).damaged.size(), 1U);
  write_file(dir / "x.bin", "garbage that is nothing");
  (void)error_of(ErrorKind::kCorrupt, [&] { (void)inspect_all(dir / "x.bin"); });
  write_file(dir / "x.safetensors", "short");
  (void)error_of(ErrorKind::kCorrupt, [&] { (void)inspect_all(dir / "x.safetensors"); });
}

TEST(InspectionTest, WhatIsDamagedInADirectoryIsListedBesideTheRest) {
  const TempDir dir;
  const std::vector<Truth> truths{Truth::make({"model", "a"}, DType::kFloat32, {2}, 1)};
  for (const char* name : {"a", "b"}) write_checkpoint(dir / name, truths, flat_split(truths, 2));
  EXPECT_TRUE(inspect_all(dir.path()).damaged.empty());
  std::filesystem::remove(dir / "a/.metadata");
  const InspectedDirectory found = inspect_all(dir.path());
  ASSERT_EQ(found.checkpoints.size(), 1);
  EXPECT_EQ(found.checkpoints[0].path, dir / "b");
  ASSERT_EQ(found.damaged.size(), 1);
  EXPECT_EQ(found.damaged[0].path, dir / "a");
}

}  // namespace
}  // namespace accel::ckpt
