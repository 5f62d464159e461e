#include "ckpt/store/model_assets.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "ckpt/store/accelerate_names.hpp"
#include "ckpt/store/adapter_names.hpp"
#include "ckpt/store/manifest.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;

// Vocabularies are .txt (WordPiece, merges), .model (SentencePiece) and .tiktoken files, templates are
// .jinja, and the code of models that are not in transformers is .py.
constexpr std::array<std::string_view, 6> kExtensions = {".json",  ".txt",      ".model",
                                                         ".jinja", ".tiktoken", ".py"};
// Files that belong to the training, not to the model.
constexpr std::array<std::string_view, 6> kTrainingState = {kManifestName,      "trainer_state.json",
                                                            "scaler.json",      "optimizer.json",
                                                            "all_results.json", "train_results.json"};

bool is_asset(const fs::path& path) {
  const std::string name = path.filename().string();
  const std::string extension = path.extension().string();
  return !name.starts_with(".") && !name.ends_with(".index.json") && !name.starts_with("random_states_") &&
         !name.starts_with(kModelStem) &&
         std::find(kTrainingState.begin(), kTrainingState.end(), name) == kTrainingState.end() &&
         std::find(kExtensions.begin(), kExtensions.end(), extension) != kExtensions.end();
}

}  // namespace

std::vector<fs::path> find_assets(const fs::path& directory) {
  if (!fs::is_directory(directory)) {
    throw Error(ErrorKind::kMissing,
                fmt::format("'{}' is not a directory to copy a model's files from", directory.string()));
  }
  std::vector<fs::path> assets;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    if (entry.is_regular_file() && is_asset(entry.path())) assets.push_back(entry.path());
  }
  if (assets.empty()) {
    throw Error(ErrorKind::kMissing,
                fmt::format("'{}' has no configuration or tokenizer files", directory.string()))
        .hint("name the directory of the model that was trained, with its config.json");
  }
  std::sort(assets.begin(), assets.end());
  return assets;
}

std::vector<fs::path> assets_beside(const fs::path& weights) {
  if (weights.empty()) return {};
  const fs::path directory = fs::is_directory(weights) ? weights : weights.parent_path();
  return fs::exists(directory / "config.json") ? find_assets(directory) : std::vector<fs::path>();
}

std::vector<fs::path> adapter_assets(const fs::path& checkpoint, const fs::path& model) {
  if (fs::path file = checkpoint / kAdapterConfigName; fs::exists(file)) return {std::move(file)};
  if (model.empty()) return {};
  if (fs::path file = model.parent_path() / kAdapterConfigName; fs::exists(file)) return {std::move(file)};
  return {};
}

}  // namespace accel::ckpt
