#include "core/launch/origin.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/files/atomic_file.hpp"
#include "base/files/directory.hpp"
#include "base/files/json_text.hpp"

namespace accel::launch {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostBytes = 1 << 20;

/// The name of a checkpoint in the file. Links are followed as far as the path exists.
std::string name_of(const fs::path& checkpoint) {
  fs::path path = fs::weakly_canonical(checkpoint);
  if (!path.has_filename()) path = path.parent_path();
  return path.string();
}

}  // namespace

Origin Origin::of(const fs::path& output_dir) {
  Origin origin;
  origin.file_ = output_dir / "began_from.json";
  if (!is_there(origin.file_)) return origin;
  use_json_file(origin.file_, kMostBytes, [&origin](const nlohmann::json& document) {
    origin.checkpoints_ = document.at("checkpoints").get<std::vector<std::string>>();
    origin.rolled_back_to_ = document.value("rolled_back_to", "");
  });
  return origin;
}

bool Origin::is_from(const fs::path& checkpoint) const {
  return std::find(checkpoints_.begin(), checkpoints_.end(), name_of(checkpoint)) != checkpoints_.end();
}

bool Origin::is_rolled_back_to(const fs::path& checkpoint) const {
  return !rolled_back_to_.empty() && rolled_back_to_ == name_of(checkpoint);
}

void Origin::begin_from(const fs::path& checkpoint, bool is_new_run, bool is_rollback) {
  const std::string name = name_of(checkpoint);
  if (is_new_run) checkpoints_.clear();
  std::erase(checkpoints_, name);
  checkpoints_.push_back(name);
  rolled_back_to_ = is_rollback ? name : "";
  nlohmann::ordered_json document = {{"checkpoints", checkpoints_}};
  if (is_rollback) document["rolled_back_to"] = name;
  // A name that is not UTF-8 matches no path, and write_resolved() refuses it anyway.
  constexpr auto kReplace = nlohmann::ordered_json::error_handler_t::replace;
  write_file_atomically(file_, document.dump(2, ' ', false, kReplace) + "\n");
}

void Origin::begin_from_nothing() {
  if (!is_there(file_)) return;
  remove_file(file_);
  sync_directory(file_.parent_path());
}

}  // namespace accel::launch
