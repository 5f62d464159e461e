#include "train/checkpoint/save_checks.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include "base/error.hpp"
#include "base/files/file.hpp"
#include "base/host/file_system.hpp"
#include "base/text.hpp"

namespace accel::train {

void require_space(const std::filesystem::path& directory, std::uint64_t bytes) {
  const std::optional<std::uint64_t> left = free_bytes(directory);
  if (!left || *left >= bytes) return;
  throw Error(ErrorKind::kFailure,
              fmt::format("a checkpoint takes {}, and the file system of '{}' has {} left",
                          format_bytes(bytes), directory.string(), format_bytes(*left)))
      .hint(
          "free some space: `accel checkpoints --keep-last N` removes old ones; with "
          "training.checkpoint.total_limit a run does so itself, up to its newest one");
}

ckpt::FileSummary summary_of(const std::filesystem::path& directory, const std::string& name) {
  const File file = File::open_read(directory / name);
  const std::uint64_t bytes = file.size();
  return {name, bytes, ckpt::crc32_of(file, 0, bytes)};
}

void require_same_on_disk(const std::filesystem::path& directory, const ckpt::FileSummary& file) {
  ::posix_fadvise(File::open_read(directory / file.name).fd(), 0, 0, POSIX_FADV_DONTNEED);
  const auto [name, size, crc] = summary_of(directory, file.name);
  if (size == file.bytes && crc == file.crc32) return;
  throw Error(
      ErrorKind::kCorrupt,
      fmt::format("'{}' differs from what was written: {} bytes with CRC-32 {:08x}, expected {} with {:08x}",
                  (directory / file.name).string(), size, crc, file.bytes, file.crc32))
      .hint("the disk or the memory of this machine is faulty");
}

}  // namespace accel::train
