#include "ckpt/output_commit.hpp"

#include <fmt/format.h>

#include <string>

#include "base/directory.hpp"
#include "base/error.hpp"
#include "base/file.hpp"
#include "base/leftover.hpp"
#include "base/staged_directory.hpp"
#include "ckpt/copy_range.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kCopyBytes = std::uint64_t{1} << 20;

// The nearest directory above `path` that is there: its file system is the one to be written to.
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
