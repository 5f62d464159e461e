#include "ckpt/verify/verify.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/files/leftover.hpp"
#include "ckpt/dcp/metadata.hpp"
#include "ckpt/io/crc32.hpp"
#include "ckpt/safetensors/header.hpp"
#include "opened.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using testing::bytes_of;
using ::testing::ElementsAre;
using testing::error_of;
using testing::flat_split;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::read_file;
using testing::TempDir;
using testing::Truth;
using ::testing::UnorderedElementsAre;
using testing::write_checkpoint;
using testing::write_file;

const std::vector<Truth> kTruths = {Truth::make({"model", "a"}, DType::kFloat32, {300, 200}, 1),
                                    Truth::make({"model", "b"}, DType::kInt64, {5}, 2)};

// Every finding below `path`, as "checkpoint's name: finding".
std::vector<std::string> findings_of(const fs::path& path) {
  std::vector<std::string> texts;
  for (const Verified& checkpoint : verify(path, {.threads = 2}).checkpoints) {
    for (const Finding& finding : checkpoint.findings) {
      texts.push_back(checkpoint.path.filename().string() + ": " + to_string(finding));
    }
  }
  return texts;
}

void flip(const fs::path& path, std::size_t at) {
  std::string data = read_file(path);
  data.at(at) = static_cast<char>(data.at(at) ^ 0x10);
  write_file(path, data);
}

class VerifyTest : public ::testing::Test {
 protected:
  void SetUp() override { write_checkpoint(model(), kTruths, flat_split(kTruths, 2), {{{"step"}, 3}}); }

  [[nodiscard]] fs::path root() const { return dir_ / "checkpoint_1"; }
  [[nodiscard]] fs::path model() const { return root() / "model_0"; }

  // A manifest as the trainer writes it, of the files that are there.
  void write_manifest() {
    nlohmann::json document = {
        {"version", 1}, {"step", 1}, {"world_size", 2}, {"files", nlohmann::json::array()}};
    for (const std::string& name : testing::names_in(model())) {
      const std::string data = read_file(model() / name);
      document["files"].push_back(
          {{"name", "model_0/" + name}, {"bytes", data.size()}, {"crc32", crc32(bytes_of(data))}});
    }
    for (const Truth& truth : kTruths) {
      document["tensors"][fqn_of(truth.path)] = {{"dtype", torch_name(truth.dtype)}, {"shape", truth.shape}};
    }
    write_file(root() / "accel_manifest.json", document.dump(2));
  }

  TempDir dir_;
};

TEST_F(VerifyTest, ASoundCheckpoint) {
  const VerifyReport report = verify(root(), {.threads = 2});
  ASSERT_EQ(report.checkpoints.size(), 1U);
  const Verified& found = report.checkpoints[0];
  EXPECT_EQ(found.path, model());
  EXPECT_EQ(found.kind, "dcp");
  EXPECT_EQ(found.tensors, 2U);
  EXPECT_EQ(found.files, 3U);
  EXPECT_THAT(found.findings, IsEmpty());
  EXPECT_EQ(report.findings(), 0U);
  EXPECT_EQ(report.summed_bytes, 240'000U)
      << "the two large records; small ones are summed with their headers";
}

TEST_F(VerifyTest, AFlippedByteOfDataNamesTheTensor) {
  flip(model() / "__1_0.distcp",
       read_file(model() / "__1_0.distcp").find(kTruths[0].data.substr(120'000, 64)));
  EXPECT_THAT(findings_of(root()),
              ElementsAre(HasSubstr("model_0: checksum: __1_0.distcp, bytes 832 to 120832, 'model.a': record "
                                    "'archive/data/0' has CRC")));
}

TEST_F(VerifyTest, NoFlippedByteIsMoreThanAFinding) {
  const TempDir dir;
  const std::vector<Truth> truths = {Truth::make({"w"}, DType::kInt16, {3, 2}, 1)};
  write_checkpoint(dir / "c", truths, flat_split(truths, 2));
  std::size_t seen = 0;
  for (const char* name : {"__0_0.distcp", ".metadata"}) {
    const std::size_t bytes = read_file(dir / "c" / name).size();
    for (std::size_t at = 0; at < bytes;
         at += 7) {  // Every seventh: the others take minutes under sanitizers.
      flip(dir / "c" / name, at);
      seen += verify(dir / "c", {.threads = 1}).findings() != 0 ? 1 : 0;
      flip(dir / "c" / name, at);
    }
  }
  EXPECT_GT(seen, 50U);
  EXPECT_EQ(verify(dir / "c", {.threads = 1}).findings(), 0U);
}

TEST_F(VerifyTest, TheManifestFindsWhatNothingElseCould) {
  write_manifest();
  EXPECT_THAT(findings_of(root()), IsEmpty());
  // The same shapes with other numbers: sound by itself.
  const std::vector<Truth> others = {Truth::make({"model", "a"}, DType::kFloat32, {300, 200}, 7),
                                     Truth::make({"model", "b"}, DType::kInt64, {5}, 8)};
  write_checkpoint(dir_ / "other", others, flat_split(others, 2), {{{"step"}, 3}});
  fs::copy_file(dir_ / "other/__1_0.distcp", model() / "__1_0.distcp", fs::copy_options::overwrite_existing);
  const auto expected = ElementsAre(
      HasSubstr("checkpoint_1: checksum: model_0/__1_0.distcp: is not the file that was saved: it has CRC"));
  EXPECT_THAT(findings_of(root()), expected);
  EXPECT_THAT(findings_of(model()), expected) << "the manifest above counts, too";
  EXPECT_THAT(findings_of(model().string() + "/"), expected);
}

TEST_F(VerifyTest, WhatAManifestListsIsThereAndNothingElse) {
  write_manifest();
  fs::remove(model() / "__1_0.distcp");
  write_file(model() / "__9_0.distcp", "");
  write_file(root() / "accel_manifest.json",
             std::string(read_file(root() / "accel_manifest.json"))
                 .replace(read_file(root() / "accel_manifest.json").find("float32"), 7, "float16"));
  const std::vector<std::string> found = findings_of(root());
  EXPECT_THAT(found,
              ElementsAre(HasSubstr("mismatch: accel_manifest.json, 'model.a': is listed as float16"),
                          HasSubstr("missing-file: model_0/__1_0.distcp: is not there, but the manifest"),
                          HasSubstr("stale: model_0/__9_0.distcp: is not listed"),
                          HasSubstr("model_0: missing-file: __1_0.distcp")));
}

TEST_F(VerifyTest, AFileThatHoldsTensorsIsListed) {
  write_manifest();
  auto document = nlohmann::json::parse(read_file(root() / "accel_manifest.json"));
  auto& files = document["files"];
  files.erase(std::find_if(files.begin(), files.end(),
                           [](const auto& file) { return file["name"] == "model_0/__1_0.distcp"; }));
  write_file(root() / "accel_manifest.json", document.dump());
  EXPECT_THAT(findings_of(root()),
              ElementsAre(HasSubstr("mismatch: model_0/__1_0.distcp: is not listed in the manifest, but")));
}

TEST_F(VerifyTest, AManifestThatCannotBeUsed) {
  for (const char* text :
       {"{", "[]", R"({"version": 2})", R"({"version": 1, "files": [{"name": "../x"}]})",
        R"({"version": 1, "files": [{"name": "../x", "bytes": 1, "crc32": 1}], "tensors": {}})",
        R"({"version": 1, "files": [{"name": "x", "bytes": -1, "crc32": 1}]})"}) {
    write_file(root() / "accel_manifest.json", text);
    const std::vector<std::string> found = findings_of(root());
    ASSERT_FALSE(found.empty()) << text;
    EXPECT_THAT(found[0], HasSubstr("accel_manifest.json")) << text;
  }
}

TEST_F(VerifyTest, ItemsThatOverlapInTheirFile) {
  std::vector<DcpRankPlan> plans;
  plans.push_back(plan_dcp_rank(0, {{{"a"}, TensorChunk{DType::kInt8, {2}, Box::whole({2})}},
                                    {{"b"}, TensorChunk{DType::kInt8, {2}, Box::whole({2})}}}));
  fs::create_directory(dir_ / "c");
  write_dcp_rank(dir_ / "c", plans[0], [](std::size_t) { return bytes_of("xy"); });
  plans[0].items[1].offset = plans[0].items[0].offset;  // As if both were the first.
  write_dcp_metadata(dir_ / "c", plans);
  EXPECT_THAT(findings_of(dir_ / "c"), ElementsAre(HasSubstr("c: overlap: __0_0.distcp")));
}

TEST_F(VerifyTest, RanksThatSavedWithoutEachOther) {
  const TempDir dir;
  const Truth truth = Truth::make({"w"}, DType::kFloat32, {2, 3}, 7);
  DcpRankPlan plan;
  const auto save = [&](int rank, const Dims& shape) {
    plan = plan_dcp_rank(rank,
                         {{truth.path, TensorChunk{truth.dtype, shape, Box::whole(shape)}}, {{"step"}, 3}});
    fs::remove(dir / plan.file);
    write_dcp_rank(dir.path(), plan, [&](std::size_t) { return bytes_of(truth.data); });
    write_file(dir / ("__" + std::to_string(rank) + ".metadata"), encode_dcp_metadata({&plan, 1}));
  };
  save(0, {2, 3});
  save(1, {2, 3});
  EXPECT_THAT(findings_of(dir.path()), IsEmpty()) << "the second rank's file holds copies only";
  for (const PlannedItem& item : plan.items) {
    flip(dir / "__1_0.distcp", item.offset);
    EXPECT_THAT(findings_of(dir.path()), ElementsAre(AllOf(HasSubstr("broken: __1_0.distcp"),
                                                           HasSubstr("'" + fqn_of(item.item.path) + "'"))));
    flip(dir / "__1_0.distcp", item.offset);
  }
  save(1, {3, 2});
  EXPECT_THAT(findings_of(dir.path()),
              ElementsAre(AllOf(HasSubstr("mismatch"), HasSubstr("'w'"),
                                HasSubstr("is float32 [2, 3] on one rank, float32 [3, 2] on rank 1"))));
  fs::remove(dir / "__0.metadata");
  EXPECT_THAT(findings_of(dir.path()), ElementsAre(HasSubstr("has no __0.metadata")));
}

TEST_F(VerifyTest, EachDisagreementOfRanksIsAFinding) {
  const TempDir dir;
  const Truth truth = Truth::make({"w"}, DType::kFloat32, {2, 3}, 7);
  for (int rank = 0; rank < 2; ++rank) {
    const Dims shape = rank == 0 ? Dims{2, 3} : Dims{3, 2};
    const DcpRankPlan plan =
        plan_dcp_rank(rank, {{truth.path, TensorChunk{truth.dtype, shape, Box::whole(shape)}},
                             {{"v"}, TensorChunk{truth.dtype, shape, Box::whole(shape)}}});
    write_dcp_rank(dir.path(), plan, [&](std::size_t) { return bytes_of(truth.data); });
    write_file(dir / ("__" + std::to_string(rank) + ".metadata"), encode_dcp_metadata({&plan, 1}));
  }
  EXPECT_THAT(findings_of(dir.path()), UnorderedElementsAre(AllOf(HasSubstr("mismatch"), HasSubstr("'v'")),
                                                            AllOf(HasSubstr("mismatch"), HasSubstr("'w'"))));
}

TEST_F(VerifyTest, AFileNameThatLeavesTheDirectory) {
  std::string metadata = read_file(model() / ".metadata");
  for (std::size_t at = metadata.find("__1_0.distcp"); at != std::string::npos;
       at = metadata.find("__1_0.distcp")) {
    metadata.replace(at, 12, "../../../etc");
  }
  write_file(model() / ".metadata", metadata);
  const std::vector<std::string> found = findings_of(model());
  ASSERT_FALSE(found.empty());
  EXPECT_THAT(found[0], HasSubstr("refers to the file '../../../etc'"));
}

TEST_F(VerifyTest, SafetensorsAndTorchFilesBesideEachOther) {
  const SafetensorsLayout layout = plan_safetensors({{"w", DType::kFloat32, {2}, 0, 0}}, {});
  fs::create_directory(dir_ / "s");
  write_file(dir_ / "s/good.safetensors", layout.prefix + "12345678");
  write_file(dir_ / "s/short.safetensors", layout.prefix + "1234567");
  write_file(dir_ / "s/pytorch_model.bin", "PK no");
  write_file(dir_ / "s/tokens.bin", "data of another program");
  const VerifyReport report = verify(dir_ / "s", {});
  ASSERT_EQ(report.checkpoints.size(), 3U);
  EXPECT_THAT(report.checkpoints[0].findings, IsEmpty());
  EXPECT_THAT(report.checkpoints[0].notes, ElementsAre(HasSubstr("no checksums")));
  EXPECT_THAT(findings_of(dir_ / "s"),
              ElementsAre(HasSubstr("pytorch_model.bin: broken: pytorch_model.bin: is neither a file of "
                                    "torch.save nor safetensors"),
                          HasSubstr("short.safetensors: broken: short.safetensors: ")));
}

TEST_F(VerifyTest, ShardsWithoutIndexAreCounted) {
  fs::create_directory(dir_ / "s");
  for (const char* name : {"a", "b"}) {
    const SafetensorsLayout layout = plan_safetensors({{name, DType::kFloat32, {2}, 0, 0}}, {});
    const std::string number = name == std::string("a") ? "00001" : "00003";
    write_file(dir_ / "s" / ("model-" + number + "-of-00003.safetensors"), layout.prefix + "12345678");
  }
  EXPECT_THAT(findings_of(dir_ / "s"),
              ElementsAre(HasSubstr("missing-file: model-00002-of-00003.safetensors: is not there, but "
                                    "model-00001-of-00003.safetensors is")));
}

TEST_F(VerifyTest, NothingThere) {
  fs::create_directory(dir_ / "empty");
  EXPECT_THAT(error_of(ErrorKind::kMissing, [&] { (void)verify(dir_ / "empty", {}); }),
              HasSubstr("holds no checkpoint"));
  EXPECT_THAT(error_of(ErrorKind::kMissing, [&] { (void)verify(dir_ / "none", {}); }),
              HasSubstr("is not there"));
}

TEST_F(VerifyTest, UnfinishedSavesAreNoCheckpoints) {
  fs::create_directory(dir_ / "run");
  fs::copy(model(), dir_ / "run/checkpoint_2.incomplete", fs::copy_options::recursive);
  fs::copy(model(), dir_ / "run/checkpoint_1", fs::copy_options::recursive);
  fs::remove(dir_ / "run/checkpoint_2.incomplete/.metadata");
  EXPECT_THAT(findings_of(dir_ / "run"), IsEmpty());
  fs::remove(dir_ / "run/checkpoint_1/.metadata");
  EXPECT_THAT(findings_of(dir_ / "run"),
              ElementsAre(HasSubstr("checkpoint_1: missing-file: .metadata: is not there")));
}

TEST_F(VerifyTest, WhatAWriterLeftBehindIsNotEntered) {
  const TempDir dir;
  testing::write_safetensors(dir / "model.safetensors", {Truth::make({"a"}, DType::kFloat32, {2}, 1)});
  const fs::path beside = leftover_name(dir / "out", LeftoverKind::kBeside);
  for (const fs::path& path :
       {beside, deleting_name(beside), leftover_name(dir.path(), LeftoverKind::kInside)}) {
    fs::create_directory(path);
    write_file(path / "model.safetensors", "short");
  }
  EXPECT_THAT(findings_of(dir.path()), IsEmpty());
  EXPECT_THAT(findings_of(beside), ElementsAre(HasSubstr("broken: model.safetensors")))
      << "it is named itself";
}

TEST_F(VerifyTest, WhatIsNotARegularFileIsAFinding) {
  const TempDir dir;
  testing::write_safetensors(dir / "model-00001-of-00002.safetensors",
                             {Truth::make({"a"}, DType::kFloat32, {2}, 1)});
  for (const char* name : {"model-00002-of-00002.safetensors", "other.bin", "pytorch_model_fsdp_rank0.bin"}) {
    std::filesystem::create_symlink("/dev/null", dir / name);
  }
  std::filesystem::create_symlink("nowhere", dir / "lost.pt");
  std::vector<std::string> broken;
  for (const Verified& verified : verify(dir.path(), {}).checkpoints) {
    for (const Finding& finding : verified.findings) broken.push_back(finding.file + " " + finding.text);
  }
  EXPECT_THAT(broken, ::testing::IsSupersetOf({"model-00002-of-00002.safetensors is not a regular file",
                                               "other.bin is not a regular file",
                                               "pytorch_model_fsdp_rank0.bin is not a regular file",
                                               "lost.pt is a link to nothing"}));
}

TEST_F(VerifyTest, ASaveThatHasNotFinishedIsAFinding) {
  const TempDir dir;
  testing::write_safetensors(dir / "model.safetensors", {Truth::make({"a"}, DType::kFloat32, {2}, 1)});
  std::filesystem::create_directory(dir / "checkpoint_5.incomplete");
  const VerifyReport report = verify(dir.path(), {});
  ASSERT_EQ(report.findings(), 1U);
  EXPECT_EQ(report.checkpoints.front().path, dir / "checkpoint_5.incomplete");
  EXPECT_EQ(report.checkpoints.front().findings.front().text, "is a save that has not finished");
}

}  // namespace
}  // namespace accel::ckpt
