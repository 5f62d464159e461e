#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/host/large_memory.hpp"

namespace accel {

/// An open file descriptor, owned. All reads and writes are positional, so several threads may use one File.
/// Every failure is an Error that names the path. Every call that changes a file is a fault point
/// (base/files/fault.hpp); reads, writes and syncs call check_interrupted().
class File {
 public:
  /// Opens a regular file for reading, without ever waiting. A FIFO, a device, a socket or a directory is an
  /// Error (kCorrupt) that says so.
  static File open_read(const std::filesystem::path& path);
  /// Creates the file with mode 0666 & ~umask. A file that exists is an Error.
  static File create_new(const std::filesystem::path& path);

  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File();

  [[nodiscard]] std::uint64_t size() const;
  /// Fills `out` with the bytes from `offset` on. A file that ends before is an Error of kind kCorrupt.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const;
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Makes write_at() bypass the page cache (O_DIRECT), or not any more. While it does, offsets, sizes and
  /// the memory must be multiples of kDirectAlignment. It takes an eighth of the processor's time. Returns
  /// whether anything has changed: it has no effect on file systems other than ext4 and xfs, above all on
  /// those of a network, where writes that wait for each other are slow.
  bool set_direct(bool direct);
  /// Lets the kernel copy up to `count` bytes from offset `from` of `source` to offset `to`. Returns how many
  /// it copied, 0 at the end of `source`; absent if the kernel cannot copy between these two files.
  [[nodiscard]] std::optional<std::uint64_t> copy_from(const File& source, std::uint64_t from,
                                                       std::uint64_t to, std::uint64_t count);
  /// Reserves space for `bytes` from the start, so that a full disk is an Error now, and makes the size at
  /// least `bytes`. On a file system that cannot reserve it has no effect.
  void reserve(std::uint64_t bytes);
  void truncate(std::uint64_t bytes);
  /// Returns once the bytes and the size are on stable storage (fsync).
  void sync();
  /// Closes, and throws what the destructor cannot report.
  void close();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  File(int fd, std::filesystem::path path);

  int fd_ = -1;
  std::filesystem::path path_;
};

inline constexpr std::size_t kDirectAlignment = 4096;

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

/// The whole file, as bytes or as text. A file of more than `limit_bytes` is an Error of kind kCorrupt.
[[nodiscard]] LargeVector<std::byte> read_whole_file(const std::filesystem::path& path,
                                                     std::uint64_t limit_bytes);
std::string read_text_file(const std::filesystem::path& path,
                           std::uint64_t limit_bytes = std::uint64_t{1} << 30);

/// Makes the names created, renamed or removed in a directory durable (fsync).
void sync_directory(const std::filesystem::path& directory);

/// Makes a directory and its missing parents, and syncs every directory in which a name appeared. Returns
/// what it made, outermost first.
std::vector<std::filesystem::path> make_directories(const std::filesystem::path& directory);

/// Renames, then syncs the directory of the target.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

/// The directory that holds `path`: "." for a bare name.
std::filesystem::path parent_of(const std::filesystem::path& path);

}  // namespace accel
