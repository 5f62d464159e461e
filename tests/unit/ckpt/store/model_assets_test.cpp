#include "ckpt/store/model_assets.hpp"

#include <gmock/gmock.h>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using testing::TempDir;
using testing::write_file;

TEST(ModelAssetsTest, TakesWhatBelongsBesideTheWeights) {
  const TempDir dir;
  for (const char* name : {"config.json",
                           "generation_config.json",
                           "tokenizer.json",
                           "tokenizer.model",
                           "merges.txt",
                           "vocab.json",
                           "chat_template.jinja",
                           "modeling_own.py",
                           "model.safetensors",
                           "model.safetensors.index.json",
                           "pytorch_model.bin",
                           "optimizer.bin",
                           "trainer_state.json",
                           "random_states_0.json",
                           "pytorch_model_fsdp_rank0.json",
                           "accel_manifest.json",
                           ".hidden.json",
                           "README.md",
                           "passwords.txt",
                           "credentials.json"}) {
    write_file(dir / name, "x");
  }
  std::filesystem::create_directory(dir / "sub.json");
  std::vector<std::string> names;
  for (const auto& path : find_assets(dir.path())) names.push_back(path.filename().string());
  EXPECT_THAT(names, ElementsAre("chat_template.jinja", "config.json", "generation_config.json", "merges.txt",
                                 "modeling_own.py", "tokenizer.json", "tokenizer.model", "vocab.json"));
}

TEST(ModelAssetsTest, NothingThereIsAnError) {
  const TempDir dir;
  write_file(dir / "model.safetensors", "x");
  (void)error_of(ErrorKind::kMissing, [&] { (void)find_assets(dir.path()); });
  (void)error_of(ErrorKind::kMissing, [&] { (void)find_assets(dir / "absent"); });
}

TEST(ModelAssetsTest, OnlyADirectoryWithAConfigurationIsThatOfAModel) {
  const TempDir dir;
  for (const char* name : {"model.safetensors", "notes.txt"}) write_file(dir / name, "x");
  EXPECT_THAT(assets_beside(dir.path()), ElementsAre());
  EXPECT_THAT(assets_beside(""), ElementsAre());
  write_file(dir / "config.json", R"({"auths": {"host": {"auth": "secret"}}})");
  EXPECT_THAT(assets_beside(dir.path()), ElementsAre());
  write_file(dir / "config.json", R"({"model_type": "llama"})");
  write_file(dir / "adapter_config.json", "{}");
  for (const auto& weights : {dir.path(), dir / "model.safetensors"})
    EXPECT_THAT(assets_beside(weights), ElementsAre(dir / "config.json"));
}

TEST(ModelAssetsTest, LinksLeadToTheDirectoryOrToTheCacheOfTheHub) {
  const TempDir dir;
  const std::filesystem::path snapshot = dir / "models--a--b" / "snapshots" / "1234";
  std::filesystem::create_directories(snapshot);
  std::filesystem::create_directories(dir / "models--a--b" / "blobs");
  write_file(dir / "models--a--b" / "blobs" / "12ab", "x");
  write_file(dir / "secret", "x");
  std::filesystem::create_symlink("../../blobs/12ab", snapshot / "config.json");
  std::filesystem::create_symlink("config.json", snapshot / "vocab.json");
  std::filesystem::create_symlink(dir / "secret", snapshot / "merges.txt");
  EXPECT_THAT(find_assets(snapshot), ElementsAre(snapshot / "config.json", snapshot / "vocab.json"));
}

TEST(ModelAssetsTest, TheDirectoryAroundALinkIsThatOfTheLink) {
  const TempDir dir;
  std::filesystem::create_directories(dir / "a" / "b");
  write_file(dir / "file", "x");
  std::filesystem::create_symlink(dir / "file", dir / "a" / "link");
  EXPECT_EQ(directory_around(dir / "a" / "link"), dir / "a");
  EXPECT_EQ(directory_around(dir / "a" / "b" / ""), dir / "a");
  EXPECT_EQ(directory_around(dir / "a" / "b" / "."), dir / "a");
  EXPECT_EQ(directory_around(dir / "a" / "b" / ".."), std::filesystem::canonical(dir.path()));
}

TEST(ModelAssetsTest, TheConfigurationOfAnAdapterIsInTheCheckpointOrBesideTheModelFile) {
  const TempDir dir;
  const TempDir checkpoint;
  EXPECT_THAT(adapter_assets(checkpoint.path(), dir / "model.pt"), ElementsAre());
  write_file(dir / "adapter_config.json", "x");
  EXPECT_THAT(adapter_assets(checkpoint.path(), dir / "model.pt"), ElementsAre(dir / "adapter_config.json"));
  EXPECT_THAT(adapter_assets(checkpoint.path(), {}), ElementsAre());
  write_file(checkpoint / "adapter_config.json", "x");
  EXPECT_THAT(adapter_assets(checkpoint.path(), dir / "model.pt"),
              ElementsAre(checkpoint / "adapter_config.json"));
}

}  // namespace
}  // namespace accel::ckpt
