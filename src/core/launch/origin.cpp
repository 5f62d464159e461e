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

/// The name as it was given: a link may lead elsewhere by now, and a mount has another name on another host.
std::string given_name_of(const fs::path& checkpoint) {
  fs::path path = fs::absolute(checkpoint).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.string();
}

/// Whether the names have that of a checkpoint, as it is given or where it leads.
bool is_in(const std::vector<std::string>& names, const fs::path& checkpoint) {
  const auto has = [&names](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  return has(given_name_of(checkpoint)) || has(name_of(checkpoint));
}

}  // namespace

void Origin::read() {
  if (!is_there(file_)) return;
  use_json_file(file_, kMostBytes, [this](const nlohmann::json& document) {
    checkpoints_ = document.at("checkpoints").get<std::vector<std::string>>();
    rolled_back_to_ = document.value("rolled_back_to", std::vector<std::string>());
  });
}

bool Origin::is_from(const fs::path& checkpoint) const { return is_in(checkpoints_, checkpoint); }

bool Origin::is_rolled_back_to(const fs::path& checkpoint) const {
  return is_in(rolled_back_to_, checkpoint);
}

void Origin::begin_from(const fs::path& checkpoint, bool is_new_run, bool is_rollback) {
  std::vector<std::string> names = {given_name_of(checkpoint)};
  if (const std::string name = name_of(checkpoint); name != names[0]) names.push_back(name);
  if (is_new_run) checkpoints_.clear();
  for (const std::string& name : names) {
    std::erase(checkpoints_, name);
    checkpoints_.push_back(name);
  }
  rolled_back_to_ = is_rollback ? names : std::vector<std::string>();
  nlohmann::ordered_json document = {{"checkpoints", checkpoints_}};
  if (is_rollback) document["rolled_back_to"] = rolled_back_to_;
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
