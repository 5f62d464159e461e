#include "ckpt/read/folders.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "base/files/directory.hpp"
#include "base/files/leftover.hpp"
#include "ckpt/store/accelerate_names.hpp"

namespace accel::ckpt {
namespace {

// The training writes into `X.incomplete`, and `accel save` into `pytorch_model_fsdp_0.incomplete-TOKEN`.
bool is_unfinished(const std::string& name) {
  return name.ends_with(".incomplete") || (name.starts_with(kModelStem) && is_leftover_name(name) &&
                                           name.find(".incomplete-") != std::string::npos);
}

bool is_left_over(const std::string& name) { return name.ends_with(".deleting") || is_leftover_name(name); }

}  // namespace

std::vector<Folder> folders_in(const std::filesystem::path& directory) {
  std::vector<Folder> folders;
  for (std::filesystem::path& path : entries_in(directory)) {
    std::error_code unreadable;
    if (!std::filesystem::is_directory(path, unreadable)) continue;
    const std::string name = path.filename().string();
    const Folder::State state = is_unfinished(name)  ? Folder::State::kUnfinished
                                : is_left_over(name) ? Folder::State::kLeftOver
                                                     : Folder::State::kOpen;
    folders.push_back({std::move(path), state, name.starts_with('.')});
  }
  return folders;
}

bool has_data_files(const std::filesystem::path& directory) {
  const std::vector<std::filesystem::path> entries = entries_in(directory);
  return std::any_of(entries.begin(), entries.end(),
                     [](const std::filesystem::path& path) { return path.extension() == ".distcp"; });
}

}  // namespace accel::ckpt
