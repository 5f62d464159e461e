#include "base/files/staged_directory.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error.hpp"
#include "base/files/directory.hpp"
#include "base/files/fault_point.hpp"
#include "base/interrupt.hpp"
#include "base/log.hpp"

namespace accel {
namespace {

namespace fs = std::filesystem;

fs::path resolved(const fs::path& target) {
  std::error_code error;
  fs::path path = fs::weakly_canonical(fs::absolute(target), error);
  if (error) throw system_error("resolve", target.string(), error.value());
  if (!path.has_filename()) path = path.parent_path();
  return path;
}

bool is_inside(const fs::path& path, const fs::path& directory) {
  const auto [end, rest] = std::mismatch(directory.begin(), directory.end(), path.begin(), path.end());
  return end == directory.end();
}

// The new directory replaces the old one, so it gets its mode, and its owner if that is permitted.
void take_after(const fs::path& directory, const fs::path& model) {
  struct stat status {};
  if (::stat(model.c_str(), &status) != 0) throw system_error("stat", model.string(), errno);
  fault::guard(fault::Operation::kSetMode, directory,
               [&] { return ::lchown(directory.c_str(), status.st_uid, status.st_gid); });
  set_mode(directory, status.st_mode & 07777);
}

// Puts `staged` in the place of `target` and returns where the old directory is now. An Error leaves both as
// they were.
fs::path swap_directories(const fs::path& staged, const fs::path& target) {
  const fs::path parent = parent_of(target);
  if (exchange_entries(staged, target)) {
    sync_or_undo(parent, [&] { (void)exchange_entries(staged, target); });
    return staged;
  }
  // If this process dies in between, sweep_leftovers() knows these names.
  fs::path old = deleting_name(staged);
  rename_entry(target, old);
  try {
    sync_directory(parent);
    if (!rename_to_free(staged, target)) throw already_there(target);
    sync_directory(parent);
  } catch (const Error&) {
    if (!is_there(staged)) rename_entry(target, staged);
    rename_entry(old, target);
    throw;
  }
  return old;
}

}  // namespace

StagedDirectory::StagedDirectory(const fs::path& target, Options options)
    : target_(resolved(target)), options_(std::move(options)) {
  sweep_leftovers(target_);
  inside_ = is_there(target_);
  if (inside_ && !fs::is_directory(target_))
    throw Error(ErrorKind::kFailure, fmt::format("'{}' is not a directory", target_.string()));
  if (inside_ && options_.existing == Existing::kRefuse) {
    const std::vector<std::string> taken = taken_names({});
    if (!taken.empty()) throw already_there(target_ / taken.front());
  }
  if (!inside_) parents_ = NewDirectories(parent_of(target_));
  do {  // Another process may sweep between the creation and the lock.
    staging_ = leftover_name(target_, inside_ ? LeftoverKind::kInside : LeftoverKind::kBeside);
    make_directory(staging_);
    lock_.emplace(staging_);
  } while (lock_->is_lost());
}

StagedDirectory::~StagedDirectory() {
  if (staging_.empty()) return;
  try {
    if (inside_) undo_links(staging_, target_, false);
  } catch (const std::exception& error) {
    log::warn(error_of(error).message());
  }
  remove_quietly(staging_);
}

void StagedDirectory::check_free(std::string_view name) const {
  if (options_.existing == Existing::kRefuse && is_there(target_ / name)) throw already_there(target_ / name);
}

File StagedDirectory::create(std::string_view name) {
  check_free(name);
  return File::create_new(staging_ / name);
}

void StagedDirectory::commit() {
  const std::vector<std::string> names = staged_names();
  sync_tree(staging_);
  check_interrupted();
  if (!inside_ && place_whole()) return finish();
  const std::vector<std::string> taken = taken_names(names);
  if (options_.existing == Existing::kRefuse) {
    if (!inside_) throw already_there(target_);
    if (!taken.empty()) throw already_there(target_ / taken.front());
  }
  const bool flat = inside_ && std::all_of(names.begin(), names.end(), [&](const std::string& name) {
                      return fs::is_regular_file(fs::symlink_status(staging_ / name));
                    });
  if (flat && taken.empty() && place_in(names)) return finish();
  if (flat && names.size() == 1 && taken == names && !fs::is_directory(target_ / names.front())) {
    place_over(names.front());
  } else {
    exchange(names);
  }
  finish();
}

// The names in sorted order, but the seal last.
std::vector<std::string> StagedDirectory::staged_names() const {
  std::vector<std::string> names = names_in(staging_);
  if (seal_.empty()) return names;
  const auto seal = std::find(names.begin(), names.end(), seal_);
  if (seal == names.end())
    throw Error(ErrorKind::kFailure, fmt::format("'{}' was to be the last file, but was not written", seal_));
  std::rotate(seal, seal + 1, names.end());
  return names;
}

std::vector<std::string> StagedDirectory::taken_names(const std::vector<std::string>& names) const {
  std::vector<std::string> taken;
  for (const std::string& name : names_in(target_)) {
    const bool wanted = std::find(names.begin(), names.end(), name) != names.end();
    if (wanted || (options_.belongs && options_.belongs(name))) taken.push_back(name);
  }
  return taken;
}

// Returns false if the target exists.
bool StagedDirectory::place_whole() {
  if (!rename_to_free(staging_, target_)) return false;
  sync_or_undo(parent_of(target_), [&] { rename_entry(target_, staging_); });
  staging_.clear();
  return true;
}

// False if the file system has no hard links.
bool StagedDirectory::place_in(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    // The other names must be durable before the seal. After a failure the destructor removes the links.
    if (name == names.back()) sync_directory(target_);
    switch (link_entry(staging_ / name, target_ / name)) {
      case LinkResult::kLinked:
        break;
      case LinkResult::kTaken:
        throw already_there(target_ / name);
      case LinkResult::kNotSupported:
        undo_links(staging_, target_, false);
        return false;
    }
  }
  sync_directory(target_);
  return true;
}

void StagedDirectory::place_over(const std::string& name) {
  const fs::path staged = staging_ / name;
  const fs::path target = target_ / name;
  const bool exchanged = exchange_entries(staged, target);
  if (!exchanged) rename_entry(staged, target);
  try {
    sync_directory(target_);
  } catch (Error& error) {
    if (!exchanged || !exchange_entries(staged, target)) {
      error.add_context(
          fmt::format("'{}' is complete, but may not survive a loss of power", target.string()));
    }
    throw;
  }
}

void StagedDirectory::exchange(const std::vector<std::string>& names) {
  if (is_inside(fs::current_path(), target_)) {
    throw Error(ErrorKind::kFailure,
                fmt::format("'{}' is the current directory and cannot be replaced", target_.string()))
        .hint("run the command from another directory");
  }
  if (inside_) {
    const fs::path beside = leftover_name(target_, LeftoverKind::kBeside);
    rename_entry(staging_, beside);
    staging_ = beside;
    inside_ = false;
  }
  // While this lock is held, no process sweeps the old directory under its new name.
  const LeftoverLock old_lock(target_);
  bool alone = old_lock.state() != LeftoverLock::State::kTaken;
  std::vector<std::string> except = names;
  for (const std::string& name : names_in(target_)) {
    if (is_leftover_name(name, {}, LeftoverKind::kInside)) alone = false;
    if (options_.belongs && options_.belongs(name)) except.push_back(name);
  }
  if (!alone) {
    throw Error(ErrorKind::kFailure, fmt::format("another process is writing into '{}'", target_.string()));
  }
  std::sort(except.begin(), except.end());
  link_tree(target_, staging_, except);
  take_after(staging_, target_);
  sync_directory(staging_);
  staging_ = swap_directories(staging_, target_);
  try {
    link_tree(staging_, target_, except);  // Entries that others made in the meantime.
  } catch (const Error& error) {
    log::warn(fmt::format("'{}' is kept: {}", staging_.string(), error.message()));
    staging_.clear();
  }
}

void StagedDirectory::finish() noexcept {
  if (!staging_.empty()) remove_quietly(staging_);
  staging_.clear();
  parents_.keep();
  lock_.reset();
}

}  // namespace accel
