#include "ckpt/read/folders.hpp"

#include <gmock/gmock.h>

#include "base/files/leftover.hpp"
#include "helpers.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;

using testing::TempDir;
using State = Folder::State;

TEST(FoldersTest, ANameSaysWhetherItIsEntered) {
  const TempDir dir;
  const fs::path model = leftover_name(dir / "pytorch_model_fsdp_0", LeftoverKind::kBeside);
  const fs::path other = leftover_name(dir / "other", LeftoverKind::kBeside);
  const fs::path inside = leftover_name(dir.path(), LeftoverKind::kInside);
  const std::vector<std::pair<fs::path, State>> expected{
      {dir / "checkpoint_1", State::kOpen},
      {dir / "checkpoint_2.incomplete", State::kUnfinished},
      {dir / "checkpoint_3.deleting", State::kLeftOver},
      {model, State::kUnfinished},
      {deleting_name(model), State::kLeftOver},
      {other, State::kLeftOver},
      {inside, State::kLeftOver},
      {dir / ".git", State::kOpen},
  };
  for (const auto& [path, state] : expected) fs::create_directory(path);
  fs::create_directory_symlink("checkpoint_1", dir / "link");
  testing::write_file(dir / "file", "");
  std::map<fs::path, State> found;
  for (const Folder& folder : folders_in(dir.path())) {
    found[folder.path] = folder.state;
    EXPECT_EQ(folder.hidden, folder.path.filename().string().starts_with('.'));
  }
  EXPECT_EQ(found.size(), expected.size() + 1);
  EXPECT_EQ(found.at(dir / "link"), State::kOpen);
  for (const auto& [path, state] : expected) EXPECT_EQ(found.at(path), state) << path;
}

}  // namespace
}  // namespace accel::ckpt
