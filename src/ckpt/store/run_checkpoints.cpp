#include "ckpt/store/run_checkpoints.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/files/directory.hpp"
#include "base/files/file.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "ckpt/io/crc32.hpp"
#include "ckpt/store/manifest.hpp"
#include "ckpt/store/run_lock.hpp"
#include "ckpt/store/run_state.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "checkpoint_";
constexpr std::string_view kIncomplete = ".incomplete";
constexpr std::string_view kDeleting = ".deleting";

std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  const auto step = parse_int<std::int64_t>(name);
  // Another spelling of the number, such as 08, is not a name that path_of() gives.
  return step && name == std::to_string(*step) ? step : std::nullopt;
}

}  // namespace

bool RunCheckpoints::is_unfinished(std::string_view name) {
  return name.starts_with(kPrefix) && (name.ends_with(kIncomplete) || name.ends_with(kDeleting));
}

RunCheckpoints::RunCheckpoints(fs::path root, Writer writer)
    : root_(std::move(root)), writer_(std::move(writer)) {}

fs::path RunCheckpoints::path_of(std::int64_t step) const {
  return root_ / fmt::format("{}{}", kPrefix, step);
}

fs::path RunCheckpoints::incomplete_path_of(std::int64_t step) const {
  const std::string& attempt = writer_.attempt;
  if (attempt.empty()) return root_ / fmt::format("{}{}{}", kPrefix, step, kIncomplete);
  return root_ /
         fmt::format("{}{}.{:08x}{}", kPrefix, step, crc32(std::as_bytes(std::span(attempt))), kIncomplete);
}

bool RunCheckpoints::is_of_training(std::int64_t step) const {
  std::error_code gone;
  return fs::is_regular_file(path_of(step) / kManifestName, gone) &&
         fs::is_regular_file(path_of(step) / kRunStateName, gone);
}

void RunCheckpoints::sweep() {
  if (!fs::is_directory(root_)) return;
  for (const std::string& name : names_in(root_)) {
    if (is_unfinished(name)) remove_quietly(root_ / name);
  }
}

std::vector<std::int64_t> RunCheckpoints::steps() const {
  std::vector<std::int64_t> found;
  if (!fs::is_directory(root_)) return found;
  for (const std::string& name : names_in(root_)) {
    std::error_code unreadable;
    if (!fs::is_directory(root_ / name, unreadable)) continue;
    if (const auto step = step_of(name)) found.push_back(*step);
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::optional<std::string> RunCheckpoints::first_name() const {
  std::error_code unreadable;
  if (!fs::is_directory(root_, unreadable)) return std::nullopt;
  for (const std::string& name : names_in(root_)) {
    if (name.starts_with(kPrefix) && !is_unfinished(name)) return name;
  }
  return std::nullopt;
}

std::optional<std::string> RunCheckpoints::taken_name(std::int64_t step) const {
  std::error_code unreadable;
  if (!fs::is_directory(root_, unreadable)) return std::nullopt;
  for (const std::string& name : names_in(root_)) {
    const auto of = step_of(name);
    if (of && *of > step && !fs::is_directory(root_ / name, unreadable)) return name;
  }
  return std::nullopt;
}

void RunCheckpoints::require_own_lock() const {
  if (!writer_.lock_token.empty()) require_lock(writer_.locked, writer_.lock_token);
}

void RunCheckpoints::begin(std::int64_t step) {
  require_own_lock();
  if (fs::exists(fs::symlink_status(path_of(step)))) {
    throw Error(ErrorKind::kFailure, fmt::format("'{}' is already there", path_of(step).string()))
        .hint("choose another output_dir");
  }
  make_directories(root_);
  remove_tree(incomplete_path_of(step));
  make_directories(incomplete_path_of(step));
}

void RunCheckpoints::commit(std::int64_t step) {
  const fs::path incomplete = incomplete_path_of(step);
  for (const auto& entry : fs::recursive_directory_iterator(incomplete)) {
    if (entry.is_directory()) sync_directory(entry.path());
  }
  sync_directory(incomplete);
  require_own_lock();
  rename_durably(incomplete, path_of(step));
}

void RunCheckpoints::remove(std::int64_t step) {
  const fs::path path = path_of(step);
  const fs::path leaving = path.string() + std::string(kDeleting);
  remove_tree(leaving);  // What an interrupted removal has left.
  rename_durably(path, leaving);
  remove_tree(leaving);
}

fs::path RunCheckpoints::set_aside(std::int64_t step, std::string_view suffix) {
  const fs::path from = path_of(step);
  fs::path to = from.string() + std::string(suffix);
  for (int number = 2; !rename_to_free(from, to); ++number)
    to = fmt::format("{}{}-{}", from.string(), suffix, number);
  sync_directory(root_);
  return to;
}

void RunCheckpoints::discard(std::int64_t step) noexcept { remove_quietly(incomplete_path_of(step)); }

void RunCheckpoints::prune(std::int64_t limit, std::optional<std::int64_t> kept) {
  if (limit <= 0) return;
  try {
    std::vector<std::int64_t> all = steps();
    const auto foreign = std::stable_partition(all.begin(), all.end(),
                                               [this](std::int64_t step) { return is_of_training(step); });
    const auto stay = std::min<std::ptrdiff_t>(limit, foreign - all.begin());
    const auto oldest_to_stay = foreign - stay;
    for (auto step = all.begin(); step != oldest_to_stay; ++step) {
      if (*step != kept) remove(*step);
    }
    for (auto step = foreign; step != all.end() && stay > 0 && *step < *oldest_to_stay; ++step) {
      if (foreign_.insert(*step).second)
        log::warn(fmt::format("'{}' is not a checkpoint of a training, and stays", path_of(*step).string()));
    }
    // An earlier attempt may have left something.
    for (const std::string& name : names_in(root_)) {
      if (name.starts_with(kPrefix) && name.ends_with(kDeleting)) remove_tree(root_ / name);
    }
  } catch (const std::exception& error) {
    log::warn(fmt::format("an old checkpoint in '{}' could not be removed: {}", root_.string(),
                          error_of(error).message()));
  }
}

}  // namespace accel::ckpt
