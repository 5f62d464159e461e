#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/files/file.hpp"

namespace accel {

/// A file of training data, which stays open while a run reads it. It is read and not mapped: where a mapped
/// file has become shorter, its last page has zeros, and a read behind that page ends the process by SIGBUS.
class DataFile {
 public:
  explicit DataFile(const std::string& path);

  [[nodiscard]] const std::string& path() const { return path_; }
  /// The size in bytes when it was opened.
  [[nodiscard]] std::uint64_t size() const { return state_.bytes; }
  /// Fills `out` with the bytes from `offset` on. A file that has become too short for it is an Error of kind
  /// kUsage, and one that cannot be read of kind kFailure. Both name the file.
  void read(std::uint64_t offset, std::span<std::byte> out) const;
  /// Says how size or time of the last change differ from those when it was opened, or when accept_change()
  /// was called last. Nothing if they do not. A file that another one has replaced under its name does not
  /// change.
  [[nodiscard]] std::optional<std::string> change() const;
  void accept_change() const;

 private:
  struct State {
    std::uint64_t bytes = 0;
    std::int64_t changed_ns = 0;  ///< The time of the last change of its content, since 1970.
  };

  [[nodiscard]] State now() const;

  std::string path_;
  File file_;
  State state_;
  mutable State accepted_;  ///< What change() compares with, which is not part of the file's value.
};

/// The files that a path or a glob of training data means, in sorted order. A name that is there is no glob.
/// No match is an Error of kind kUsage. Calls allow_data_files() for them.
[[nodiscard]] std::vector<std::string> data_files(const std::string& pattern);

/// Raises the process's limit of open files as far as needed and allowed, so that `files` files of training
/// data can stay open.
void allow_data_files(std::size_t files);

/// The Error (kUsage) of a file that does not have what it had when it was opened.
[[nodiscard]] Error changed_error(const DataFile& file, const std::string& change);

}  // namespace accel
