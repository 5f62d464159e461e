#include "base/files/directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>

#include "base/error.hpp"
#include "base/files/fault_point.hpp"
#include "base/files/leftover.hpp"
#include "base/log.hpp"

namespace accel {
namespace {

namespace fs = std::filesystem;
using fault::Operation;

constexpr std::uint64_t kCopyPieceBytes = std::uint64_t{32} << 20;

Error rename_error(const fs::path& from, const fs::path& to, int error) {
  return system_error(fmt::format("rename '{}' to", from.string()), to.string(), error);
}

bool is_unsupported(int error) {
  return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP || error == ENOTTY;
}

struct stat status_of(const fs::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) throw system_error("stat", path.string(), errno);
  return status;
}

void duplicate_file(const fs::path& from, const fs::path& to, unsigned mode) {
  const File source = File::open_read(from);
  File target = File::create_new(to);
  const std::uint64_t size = source.size();
  std::unique_ptr<std::byte[]> buffer;
  for (std::uint64_t at = 0; at < size;) {
    const std::uint64_t piece = std::min(kCopyPieceBytes, size - at);
    std::uint64_t done = target.copy_from(source, at, at, piece).value_or(0);
    if (done == 0) {
      if (!buffer) buffer = std::make_unique_for_overwrite<std::byte[]>(kCopyPieceBytes);
      source.read_at(at, {buffer.get(), piece});
      target.write_at(at, {buffer.get(), piece});
      done = piece;
    }
    at += done;
  }
  set_mode(to, mode);
  target.sync();
  target.close();
}

void duplicate_link(const fs::path& from, const fs::path& to) {
  const fs::path pointee = fs::read_symlink(from);
  if (fault::guard(Operation::kSymlink, to, [&] { return ::symlink(pointee.c_str(), to.c_str()); }) != 0)
    throw system_error("make symbolic link", to.string(), errno);
}

void link_or_copy(const fs::path& from, const fs::path& to, const struct stat& status) {
  switch (link_entry(from, to)) {
    case LinkResult::kLinked:
    case LinkResult::kTaken:
      return;
    case LinkResult::kNotSupported:
      break;
  }
  if (S_ISREG(status.st_mode)) return duplicate_file(from, to, status.st_mode & 07777);
  if (S_ISLNK(status.st_mode)) return duplicate_link(from, to);
  throw Error(ErrorKind::kFailure,
              fmt::format("cannot copy '{}': it is not a regular file, a directory or a symbolic link",
                          from.string()));
}

void link_directory(const fs::path& from, const fs::path& to, const std::vector<std::string>& except,
                    dev_t device) {
  bool changed = false;
  for (const std::string& name : names_in(from)) {
    if (std::binary_search(except.begin(), except.end(), name)) continue;
    const struct stat status = status_of(from / name);
    const bool taken = is_there(to / name);
    if (!S_ISDIR(status.st_mode)) {
      if (taken) continue;
      link_or_copy(from / name, to / name, status);
      changed = true;
      continue;
    }
    if (status.st_dev != device) {
      throw Error(ErrorKind::kFailure,
                  fmt::format("'{}' is another file system mounted there", (from / name).string()))
          .hint("choose another output");
    }
    if (!taken) {
      make_directory(to / name);
      set_mode(to / name, status.st_mode & 07777);
      changed = true;
    }
    link_directory(from / name, to / name, {}, device);
  }
  if (changed) sync_directory(to);
}

}  // namespace

bool is_there(const fs::path& path) { return fs::exists(fs::symlink_status(path)); }

void rename_entry(const fs::path& from, const fs::path& to) {
  if (fault::guard(Operation::kRename, to, [&] { return ::rename(from.c_str(), to.c_str()); }) != 0)
    throw rename_error(from, to, errno);
}

bool rename_to_free(const fs::path& from, const fs::path& to) {
  const int result = fault::guard(Operation::kRenameNew, to, [&] {
    return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE);
  });
  if (result == 0) return true;
  if (errno == EEXIST) return false;
  if (!is_unsupported(errno)) throw rename_error(from, to, errno);
  if (is_there(to)) return false;
  rename_entry(from, to);
  return true;
}

bool exchange_entries(const fs::path& a, const fs::path& b) {
  const int result = fault::guard(Operation::kExchange, b, [&] {
    return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE);
  });
  if (result == 0) return true;
  if (is_unsupported(errno)) return false;
  throw system_error(fmt::format("exchange '{}' with", a.string()), b.string(), errno);
}

LinkResult link_entry(const fs::path& from, const fs::path& to) {
  if (fault::guard(Operation::kLink, to, [&] { return ::link(from.c_str(), to.c_str()); }) == 0)
    return LinkResult::kLinked;
  switch (errno) {
    case EEXIST:
      return LinkResult::kTaken;
    case EPERM:  // No links on this file system, or not to a file of another user.
    case EMLINK:
    case EXDEV:
    case ENOSYS:
    case EOPNOTSUPP:
      return LinkResult::kNotSupported;
    default:
      throw system_error(fmt::format("link '{}' to", from.string()), to.string(), errno);
  }
}

void make_directory(const fs::path& path) {
  if (fault::guard(Operation::kMakeDirectory, path, [&] { return ::mkdir(path.c_str(), 0777); }) != 0)
    throw system_error("create directory", path.string(), errno);
}

void remove_file(const fs::path& path) {
  if (fault::guard(Operation::kUnlink, path, [&] { return ::unlink(path.c_str()); }) != 0)
    throw system_error("remove", path.string(), errno);
}

void remove_directory(const fs::path& path) {
  if (fault::guard(Operation::kRemoveDirectory, path, [&] { return ::rmdir(path.c_str()); }) != 0)
    throw system_error("remove", path.string(), errno);
}

void set_mode(const fs::path& path, unsigned mode) {
  if (fault::guard(Operation::kSetMode, path, [&] { return ::chmod(path.c_str(), mode); }) != 0)
    throw system_error("change the mode of", path.string(), errno);
}

void remove_tree(const fs::path& path) {
  const fs::file_status status = fs::symlink_status(path);
  if (!fs::exists(status)) return;
  try {
    if (!fs::is_directory(status)) return remove_file(path);
    for (const std::string& name : names_in(path)) remove_tree(path / name);
    remove_directory(path);
  } catch (const Error&) {
    if (is_there(path)) throw;  // Otherwise another process has removed it.
  }
}

void remove_quietly(const fs::path& path) noexcept {
  try {
    remove_tree(path);
  } catch (const std::exception& error) {
    log::warn(error_of(error).message());
  }
}

void discard_tree(const fs::path& path) {
  if (!is_there(path)) return;
  const fs::path doomed = leftover_name(path, LeftoverKind::kDeleting);
  const LeftoverLock lock(path);
  rename_entry(path, doomed);
  sync_or_undo(parent_of(path), [&] { rename_entry(doomed, path); });
  remove_tree(doomed);
}

NewDirectories::~NewDirectories() {
  for (auto path = made_.rbegin(); path != made_.rend(); ++path) {
    try {
      remove_directory(*path);
    } catch (const std::exception&) {
      return;  // Another process uses it by now.
    }
  }
}

void sync_tree(const fs::path& directory) {
  for (const std::string& name : names_in(directory)) {
    const fs::path path = directory / name;
    const fs::file_status status = fs::symlink_status(path);
    if (fs::is_directory(status)) {
      sync_tree(path);
    } else if (fs::is_regular_file(status)) {
      File::open_read(path).sync();
    }
  }
  sync_directory(directory);
}

void link_tree(const fs::path& from, const fs::path& to, const std::vector<std::string>& except) {
  link_directory(from, to, except, status_of(from).st_dev);
}

Error already_there(const fs::path& path) {
  return Error(ErrorKind::kFailure, fmt::format("'{}' is already there", path.string()))
      .hint("choose another output, or pass --force to replace it");
}

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error) throw system_error("list", directory.string(), error.value());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<fs::path> entries_in(const fs::path& directory) {
  std::vector<fs::path> entries;
  for (const std::string& name : names_in(directory)) entries.push_back(directory / name);
  return entries;
}

std::vector<std::string> files_in(const fs::path& directory, std::string_view prefix,
                                  std::string_view suffix) {
  std::vector<std::string> names = names_in(directory);
  std::erase_if(names, [&](const std::string& name) {
    // Of AppleDouble: what macOS knows of another file.
    const bool is_note = name.starts_with("._");
    const bool fits = !is_note && name.size() >= prefix.size() + suffix.size() && name.starts_with(prefix) &&
                      name.ends_with(suffix);
    std::error_code unreadable;
    return !fits || !fs::is_regular_file(directory / name, unreadable);
  });
  return names;
}

}  // namespace accel
