#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/large_memory.hpp"

namespace accel {

/// An open file descriptor, owned. All reads and writes are positional, so one File may be used by several
/// threads. Every failure is an Error that names the path. What changes files passes through base/fault.hpp;
/// reads, writes and syncs notice signals (base/interrupt.hpp).
class File {
 public:
  /// Only a regular file: a FIFO, a device, a socket or a directory is an Error (kCorrupt) that says so, and
  /// is never waited for.
  static File open_read(const std::filesystem::path& path);
  /// Creates the file, which must not be there yet; mode is 0666 & ~umask.
  static File create_new(const std::filesystem::path& path);

  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File();

  [[nodiscard]] std::uint64_t size() const;
  /// Fills `out` from `offset`; the end of the file before that is an Error of kind kCorrupt.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const;
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Lets the kernel copy up to `count` bytes at `from` in `source` to `to`: how many it did, 0 at the end of
  /// `source`; nothing if it cannot between these two.
  [[nodiscard]] std::optional<std::uint64_t> copy_from(const File& source, std::uint64_t from,
                                                       std::uint64_t to, std::uint64_t count);
  /// Reserves space for `bytes` from the start, so that a full disk is noticed now; file systems without this
  /// are none the worse. The size becomes at least `bytes`.
  void reserve(std::uint64_t bytes);
  void truncate(std::uint64_t bytes);
  /// fsync: returns once the bytes and the size are on stable storage.
  void sync();
  /// Closes and reports an error that close() returns; the destructor cannot.
  void close();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  File(int fd, std::filesystem::path path);

  int fd_ = -1;
  std::filesystem::path path_;
};

/// A whole file mapped for reading. A file that shrinks while mapped raises SIGBUS; map only files that are
/// complete.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// The whole file as a string, or as bytes; larger than `limit_bytes` is an Error of kind kCorrupt.
[[nodiscard]] LargeVector<std::byte> read_whole_file(const std::filesystem::path& path,
                                                     std::uint64_t limit_bytes);
std::string read_text_file(const std::filesystem::path& path,
                           std::uint64_t limit_bytes = std::uint64_t{1} << 30);

/// fsync of a directory, which makes the names created, renamed or removed in it durable.
void sync_directory(const std::filesystem::path& directory);

/// mkdir -p; then fsync of every directory in which a name appeared. Returns what it made, outermost first.
std::vector<std::filesystem::path> make_directories(const std::filesystem::path& directory);

/// rename(2), then fsync of the target's directory.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

/// The directory that holds `path`: "." for a bare name.
std::filesystem::path parent_of(const std::filesystem::path& path);

}  // namespace accel
