#pragma once

#include <cstddef>
#include <filesystem>
#include <list>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "base/file.hpp"

namespace accel::ckpt {

/// Files of one directory, opened for reading on demand; the least recently used one is closed when there are
/// too many.
class FileCache {
 public:
  explicit FileCache(std::filesystem::path directory, std::size_t most_open = 64)
      : directory_(std::move(directory)), most_open_(most_open) {}

  /// The file of that name, which may have no "..", and may not be absolute. The reference holds until the
  /// next call. Throws Error: kMissing if it is not there, kCorrupt for such a name.
  const File& open(const std::string& name);

  /// As open, but a File of the caller's own.
  [[nodiscard]] File open_own(const std::string& name) const;

  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }

 private:
  using Open = std::pair<std::string, File>;

  std::filesystem::path directory_;
  std::size_t most_open_;
  std::list<Open> open_;  // Most recently used first.
  std::map<std::string, std::list<Open>::iterator, std::less<>> by_name_;
};

}  // namespace accel::ckpt
