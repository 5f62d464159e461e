#include "base/files/file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/files/directory.hpp"
#include "base/files/fault_point.hpp"
#include "base/files/no_sync.hpp"
#include "base/interrupt.hpp"

namespace accel {
namespace {

using fault::Operation;

// The kernel transfers at most 0x7ffff000 bytes in one call. Smaller pieces notice signals sooner.
constexpr std::size_t kMaxTransferBytes = std::size_t{64} << 20;

// The kernel reads ahead between the calls, but hardly within a call. Two processes together read 0.70 GB/s
// from a disk of 1.1 GB/s with 64 MiB a call, 0.78 with 4 MiB a call, and 0.92 if the kernel also reads
// further ahead (bench/journal-checkpoints.md).
constexpr std::size_t kMaxReadBytes = std::size_t{4} << 20;

int open_or_throw(const std::filesystem::path& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC);
  if (fd < 0) throw system_error("open", path.string(), errno);
  return fd;
}

const char* kind_of(mode_t mode) {
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode)) return "a character device";
  return "a block device";
}

void require_regular(const std::filesystem::path& path, const struct stat& status) {
  if (S_ISREG(status.st_mode)) return;
  throw Error(ErrorKind::kCorrupt,
              fmt::format("'{}' is {}, not a regular file", path.string(), kind_of(status.st_mode)));
}

}  // namespace

File::File(int fd, std::filesystem::path path) : fd_(fd), path_(std::move(path)) {}

// The type is checked before the file is opened, because opening has effects on some devices. It is checked
// again afterwards: what another process put there in between is opened without waiting, and refused then.
File File::open_read(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) require_regular(path, status);
  File file(open_or_throw(path, O_RDONLY | O_NONBLOCK | O_NOCTTY), path);
  if (::fstat(file.fd_, &status) != 0) throw system_error("stat", path.string(), errno);
  require_regular(path, status);
  return file;
}

File File::create_new(const std::filesystem::path& path) {
  const int fd = fault::guard(Operation::kCreate, path, [&] {
    return ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  });
  if (fd < 0) throw system_error("create", path.string(), errno);
  return {fd, path};
}

File::File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  return *this;
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

std::uint64_t File::size() const {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) throw system_error("stat", path_.string(), errno);
  return static_cast<std::uint64_t>(status.st_size);
}

void File::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  std::size_t done = 0;
  if (out.size() > kMaxReadBytes) ::posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);
  while (done < out.size()) {
    check_interrupted();
    const ssize_t n = ::pread(fd_, out.data() + done, std::min(out.size() - done, kMaxReadBytes),
                              static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw system_error("read", path_.string(), errno);
    if (n == 0) {
      throw Error(ErrorKind::kCorrupt, fmt::format("'{}' ends at byte {}, but bytes {} to {} are needed",
                                                   path_.string(), size(), offset, offset + out.size()))
          .hint("the file may be truncated");
    }
    done += static_cast<std::size_t>(n);
  }
}

void File::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    check_interrupted();
    const std::size_t piece = std::min(bytes.size() - done, kMaxTransferBytes);
    const ssize_t n = fault::transfer(Operation::kWrite, path_, piece, [&](std::size_t count) {
      return ::pwrite(fd_, bytes.data() + done, count, static_cast<off_t>(offset + done));
    });
    if (n < 0 && errno == EINTR) continue;
    // A write that ended early has left something that is not aligned.
    if (n < 0 && errno == EINVAL && set_direct(false)) continue;
    if (n < 0) throw system_error("write", path_.string(), errno);
    done += static_cast<std::size_t>(n);
  }
}

bool File::set_direct(bool direct) {
  const int flags = ::fcntl(fd_, F_GETFL);
  if (flags < 0 || ((flags & O_DIRECT) != 0) == direct) return false;
  if (direct) {
    struct statfs system {};
    if (::fstatfs(fd_, &system) != 0) return false;
    constexpr auto kXfs = 0x5846'5342;  // Not in linux/magic.h of older systems.
    if (system.f_type != EXT4_SUPER_MAGIC && system.f_type != kXfs) return false;
  }
  return ::fcntl(fd_, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

std::optional<std::uint64_t> File::copy_from(const File& source, std::uint64_t from, std::uint64_t to,
                                             std::uint64_t count) {
  while (true) {
    check_interrupted();
    auto in = static_cast<off_t>(from);
    auto out = static_cast<off_t>(to);
    const ssize_t done = fault::transfer(Operation::kCopy, path_, count, [&](std::size_t piece) {
      return ::copy_file_range(source.fd_, &in, fd_, &out, piece, 0);
    });
    if (done >= 0) return static_cast<std::uint64_t>(done);
    if (errno == EINTR) continue;
    if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG || errno == EIO)
      throw system_error("write", path_.string(), errno);
    return std::nullopt;  // The kernel or the file systems cannot.
  }
}

void File::reserve(std::uint64_t bytes) {
  if (bytes == 0) return;
  const int result = fault::guard(Operation::kReserve, path_,
                                  [&] { return ::fallocate(fd_, 0, 0, static_cast<off_t>(bytes)); });
  if (result != 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG || errno == EIO))
    throw system_error("reserve space for", path_.string(), errno);
}

void File::truncate(std::uint64_t bytes) {
  if (fault::guard(Operation::kTruncate, path_,
                   [&] { return ::ftruncate(fd_, static_cast<off_t>(bytes)); }) != 0)
    throw system_error("set the size of", path_.string(), errno);
}

void File::sync() {
  check_interrupted();
  if (fault::guard(Operation::kSync, path_, [&] { return ::fsync(fd_); }) != 0 && !has_no_sync(errno))
    throw system_error("fsync", path_.string(), errno);
}

void File::close() {
  const int fd = std::exchange(fd_, -1);
  if (fd >= 0 && ::close(fd) != 0) throw system_error("close", path_.string(), errno);
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  const File file = File::open_read(path);
  size_ = file.size();
  if (size_ == 0) return;
  void* mapping = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.fd(), 0);
  if (mapping == MAP_FAILED) throw system_error("map", path.string(), errno);
  data_ = static_cast<const std::byte*>(mapping);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

namespace {

template <class Bytes>
Bytes read_whole(const std::filesystem::path& path, std::uint64_t limit_bytes) {
  const File file = File::open_read(path);
  const std::uint64_t size = file.size();
  if (size > limit_bytes) {
    throw Error(ErrorKind::kCorrupt,
                fmt::format("'{}' has {} bytes, at most {} are expected", path.string(), size, limit_bytes));
  }
  Bytes bytes;
  bytes.resize(size);
  file.read_at(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

}  // namespace

std::string read_text_file(const std::filesystem::path& path, std::uint64_t limit_bytes) {
  return read_whole<std::string>(path, limit_bytes);
}

LargeVector<std::byte> read_whole_file(const std::filesystem::path& path, std::uint64_t limit_bytes) {
  return read_whole<LargeVector<std::byte>>(path, limit_bytes);
}

void sync_directory(const std::filesystem::path& directory) {
  const int fd = open_or_throw(directory, O_RDONLY | O_DIRECTORY);
  const int result = fault::guard(Operation::kSyncDirectory, directory, [&] { return ::fsync(fd); });
  const int error = errno;
  ::close(fd);
  if (result != 0 && !has_no_sync(error)) throw system_error("fsync", directory.string(), error);
}

std::vector<std::filesystem::path> make_directories(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> missing;
  for (std::filesystem::path path = directory; !path.empty() && !std::filesystem::exists(path);
       path = path.parent_path()) {
    missing.push_back(path);
    if (path == path.parent_path()) break;
  }
  std::vector<std::filesystem::path> made;
  try {
    for (auto path = missing.rbegin(); path != missing.rend(); ++path) {
      const int result =
          fault::guard(Operation::kMakeDirectory, *path, [&] { return ::mkdir(path->c_str(), 0777); });
      if (result != 0 && errno == EEXIST) continue;
      if (result != 0) throw system_error("create directory", path->string(), errno);
      made.push_back(*path);
      sync_directory(parent_of(*path));
    }
    if (!std::filesystem::is_directory(directory))
      throw system_error("create directory", directory.string(), ENOTDIR);
  } catch (const Error&) {
    for (auto path = made.rbegin(); path != made.rend(); ++path) remove_quietly(*path);
    throw;
  }
  return made;
}

void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to) {
  rename_entry(from, to);
  sync_directory(parent_of(to));
}

std::filesystem::path parent_of(const std::filesystem::path& path) {
  std::filesystem::path parent = path.parent_path();
  return parent.empty() ? std::filesystem::path(".") : parent;
}

}  // namespace accel
