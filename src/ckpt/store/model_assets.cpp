#include "ckpt/store/model_assets.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/files/file.hpp"
#include "base/files/json_text.hpp"
#include "base/log.hpp"
#include "ckpt/store/adapter_names.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;

// SentencePiece, tiktoken, templates, and the code of models that are not in transformers.
constexpr std::array<std::string_view, 5> kExtensions = {".model", ".spm", ".tiktoken", ".jinja", ".py"};
constexpr std::array<std::string_view, 9> kNames = {
    "config.json",       "configuration.json", "special_tokens_map.json",
    "added_tokens.json", "chat_template.json", "normalizer.json",
    "modules.json",      "merges.txt",         "dict.txt"};

// A directory of models may have other files, which are nobody's to copy.
bool is_asset(const fs::path& path) {
  const std::string name = path.filename().string();
  const std::string extension = path.extension().string();
  const auto is_in = [](const auto& list, const std::string& text) {
    return std::find(list.begin(), list.end(), text) != list.end();
  };
  if (name.starts_with(".")) return false;
  if (is_in(kExtensions, extension) || is_in(kNames, name)) return true;
  if (extension != ".json" && extension != ".txt") return false;
  return name.find("vocab") != std::string::npos || name.starts_with("tokenizer") ||
         name.ends_with("_config.json");
}

// Whether the file lies in the directory, or is a link to a file of it. The snapshots of the Hugging Face
// cache have links to its blobs.
bool is_of_directory(const fs::path& file, const fs::path& directory) {
  const fs::path real = fs::canonical(directory);
  const fs::path target = fs::canonical(file);
  const auto lies_in = [&](const fs::path& outer) {
    return std::mismatch(outer.begin(), outer.end(), target.begin(), target.end()).first == outer.end();
  };
  return lies_in(real) || (real.parent_path().filename() == "snapshots" &&
                           lies_in(real.parent_path().parent_path() / "blobs"));
}

// Other programs have a config.json too.
bool is_of_transformers(const fs::path& config) {
  if (!fs::is_regular_file(config)) return false;
  const nlohmann::json document = read_json_file(config);
  return document.contains("model_type") || document.contains("architectures") ||
         document.contains("transformers_version");
}

}  // namespace

std::vector<fs::path> find_assets(const fs::path& directory) {
  if (!fs::is_directory(directory)) {
    throw Error(ErrorKind::kMissing,
                fmt::format("'{}' is not a directory to copy a model's files from", directory.string()));
  }
  std::vector<fs::path> assets;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    if (!entry.is_regular_file() || !is_asset(entry.path())) continue;
    if (is_of_directory(entry.path(), directory)) {
      assets.push_back(entry.path());
    } else {
      log::warn(
          fmt::format("'{}' is a link out of its directory, so it is not copied", entry.path().string()));
    }
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
  const fs::path directory = fs::is_directory(weights) ? weights : parent_of(weights);
  if (!is_of_transformers(directory / "config.json")) return {};
  std::vector<fs::path> assets = find_assets(directory);
  std::erase_if(assets, [](const fs::path& file) { return file.filename() == kAdapterConfigName; });
  return assets;
}

std::string dtype_of_config(const std::vector<fs::path>& assets) {
  const auto config = std::find_if(assets.begin(), assets.end(),
                                   [](const fs::path& file) { return file.filename() == "config.json"; });
  if (config == assets.end()) return "";
  const nlohmann::json document = read_json_file(*config);
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (const auto name = document.find(key); name != document.end() && name->is_string())
      return name->get<std::string>();
  }
  return "";
}

fs::path directory_around(const fs::path& path) {
  fs::path named = fs::absolute(path);
  while (named.filename().empty() || named.filename() == ".") named = named.parent_path();
  return (named.filename() == ".." ? fs::canonical(named) : named).parent_path();
}

std::vector<fs::path> adapter_assets(const fs::path& checkpoint, const fs::path& model) {
  if (fs::path file = checkpoint / kAdapterConfigName; fs::exists(file)) return {std::move(file)};
  if (model.empty()) return {};
  if (fs::path file = parent_of(model) / kAdapterConfigName; fs::exists(file)) return {std::move(file)};
  return {};
}

}  // namespace accel::ckpt
