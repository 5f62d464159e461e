#include "ckpt/io/file_cache.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"

namespace accel::ckpt {
namespace {

std::filesystem::path checked_path(const std::filesystem::path& directory, const std::string& name) {
  const std::filesystem::path relative(name);
  const bool outside = relative.is_absolute() || relative.empty() || name.find('\0') != std::string::npos ||
                       std::find(relative.begin(), relative.end(), "..") != relative.end();
  if (outside) {
    throw Error(ErrorKind::kCorrupt,
                fmt::format("'{}' refers to the file '{}', which is not in it", directory.string(), name));
  }
  std::filesystem::path path = directory / relative;
  if (!std::filesystem::exists(path)) {
    throw Error(ErrorKind::kMissing, fmt::format("'{}' is not there", path.string()))
        .hint("the checkpoint is incomplete; was it copied whole?");
  }
  return path;
}

}  // namespace

const File& FileCache::open(const std::string& name) {
  if (const auto found = by_name_.find(name); found != by_name_.end()) {
    open_.splice(open_.begin(), open_, found->second);
    return open_.front().second;
  }
  File file = File::open_read(checked_path(directory_, name));
  if (open_.size() >= most_open_) {
    by_name_.erase(open_.back().first);
    open_.pop_back();
  }
  open_.emplace_front(name, std::move(file));
  by_name_.emplace(name, open_.begin());
  return open_.front().second;
}

File FileCache::open_own(const std::string& name) const {
  return File::open_read(checked_path(directory_, name));
}

}  // namespace accel::ckpt
