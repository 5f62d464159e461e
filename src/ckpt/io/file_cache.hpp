#pragma once

#include <cstddef>
#include <filesystem>
#include <list>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "base/files/file.hpp"

namespace accel::ckpt {

/// Opens files of one directory for reading on demand, and closes the least recently used one when more than
/// `most_open` would be open.
class FileCache {
 public:
  explicit FileCache(std::filesystem::path directory, std::size_t most_open = 64)
      : directory_(std::move(directory)), most_open_(most_open) {}

  /// The file `name`, relative to the directory. The reference is valid until the next call. Throws Error:
  /// kMissing if the file does not exist, kCorrupt if `name` is absolute or contains "..".
  const File& open(const std::string& name);

  /// Opens the file as open() does, outside the cache: the caller owns it.
  [[nodiscard]] File open_own(const std::string& name) const;

  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }

 private:
  using Open = std::pair<std::string, File>;

  std::filesystem::path directory_;
  std::size_t most_open_;
  std::list<Open> open_;  // The open files, the last used first.
  std::map<std::string, std::list<Open>::iterator, std::less<>> by_name_;
};

}  // namespace accel::ckpt
