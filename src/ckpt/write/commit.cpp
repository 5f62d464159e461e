#include "ckpt/write/commit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/error.hpp"
#include "base/files/directory.hpp"
#include "base/files/file.hpp"
#include "base/files/leftover.hpp"
#include "base/files/staged_directory.hpp"
#include "ckpt/io/copy_range.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kCopyBytes = std::uint64_t{1} << 20;

// The nearest directory above `path` that exists. The output will be written to its file system.
fs::path existing_parent(const fs::path& path) {
  fs::path parent = fs::absolute(path);
  while (!fs::is_directory(parent) && parent.has_relative_path()) parent = parent.parent_path();
  return parent;
}

void copy_asset(const fs::path& from, StagedDirectory& directory) {
  const File source = File::open_read(from);
  File target = directory.create(from.filename().string());
  std::vector<std::byte> buffer(kCopyBytes);
  RangeCopier(target, buffer, [](std::uint64_t) {}).copy(source, 0, 0, source.size());
}

// Whether a file called `name` may be one of the files of the checkpoint, if that has several files.
bool is_name_of(const Checkpoint& source, std::string_view name) {
  switch (source.kind()) {
    case Kind::kDcp:
      return name.ends_with(".distcp") || name.ends_with(".metadata");
    case Kind::kDcpSafetensors:
    case Kind::kSafetensorsSharded:
      return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
    case Kind::kTorchSharded:
      return name.ends_with(".bin") || name.ends_with(".bin.index.json");
    case Kind::kLocal:
    case Kind::kDtensor:
      return name.find("_rank") != std::string_view::npos;
    default:
      return false;
  }
}

bool lies_in(const fs::path& path, const fs::path& entry) {
  const fs::path inner = fs::weakly_canonical(path);
  const fs::path outer = fs::weakly_canonical(entry);
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

// Throws if the commit would replace a file of the source, which would then be lost without the output ever
// having been verified. Replacing a link does not replace its target.
void check_replaces_no_source(const Checkpoint& source, const OutputPlan& plan, const OutputTarget& target) {
  const fs::path directory = target.is_file ? parent_of(target.path) : target.path;
  if (target.existing != AtomicFile::Existing::kReplace || !fs::is_directory(directory)) return;
  const auto is_replaced = [&](const std::string& name) {
    if (target.is_file) return name == target.path.filename().string();
    const auto has_name = [&](const OutputFile& file) { return file.name == name; };
    return std::any_of(plan.files.begin(), plan.files.end(), has_name) ||
           (target.belongs && target.belongs(name));
  };
  const bool same_directory = fs::equivalent(directory, source.directory());
  for (const std::string& name : names_in(directory)) {
    if (!is_replaced(name)) continue;
    const fs::path entry = directory / name;
    const bool is_read = !fs::is_symlink(entry) && lies_in(source.path(), entry);
    if (!is_read && !(same_directory && is_name_of(source, name))) continue;
    throw Error(ErrorKind::kUsage,
                fmt::format("'{}' would be replaced, but the output is made from it", entry.string()))
        .hint("write the output elsewhere");
  }
}

void write_directory(Checkpoint& source, const OutputPlan& plan, const OutputTarget& target,
                     const WriteLimits& limits, Progress& progress) {
  StagedDirectory directory(target.path, {target.existing, target.belongs});
  for (const OutputFile& file : plan.files) directory.check_free(file.name);
  for (const fs::path& asset : target.assets) copy_asset(asset, directory);
  for (const OutputFile& file : plan.files) {
    File out = directory.create(file.name);
    write_file(source, file, out, limits, progress);
    out.close();
  }
  if (!plan.files.empty()) directory.set_seal(plan.files.back().name);
  directory.commit();
}

}  // namespace

void check_target(const OutputPlan& plan, const OutputTarget& target) {
  check_plan(plan);
  sweep_leftovers(target.path);
  if (target.existing == AtomicFile::Existing::kReplace) return;
  const auto refuse = [](const fs::path& path) { throw already_there(path); };
  if (target.is_file) {
    if (fs::exists(fs::symlink_status(target.path))) refuse(target.path);
    return;
  }
  if (!fs::is_directory(target.path)) {
    if (fs::exists(fs::symlink_status(target.path))) refuse(target.path);
    return;
  }
  for (const OutputFile& file : plan.files) {
    if (fs::exists(fs::symlink_status(target.path / file.name))) refuse(target.path / file.name);
  }
  for (const fs::path& asset : target.assets) {
    if (fs::exists(fs::symlink_status(target.path / asset.filename())))
      refuse(target.path / asset.filename());
  }
  if (!target.belongs) return;
  for (const fs::directory_entry& entry : fs::directory_iterator(target.path)) {
    if (target.belongs(entry.path().filename().string())) refuse(entry.path());
  }
}

void write_output(Checkpoint& source, const OutputPlan& plan, const OutputTarget& target,
                  const WriteLimits& limits, Progress& progress) {
  check_target(plan, target);
  check_replaces_no_source(source, plan, target);
  check_free_space(existing_parent(target.path), plan.total_bytes());
  if (!target.is_file) {
    write_directory(source, plan, target, limits, progress);
    return;
  }
  if (plan.files.size() != 1) {
    throw Error(ErrorKind::kUsage, fmt::format("'{}' is one file, but {} are to be written",
                                               target.path.string(), plan.files.size()))
        .hint("name a directory");
  }
  AtomicFile file(target.path, target.existing, AtomicFile::Parents::kMake);
  write_file(source, plan.files.front(), file.file(), limits, progress);
  file.commit();
}

}  // namespace accel::ckpt
