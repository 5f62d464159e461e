#include "ckpt/io/copy_range.hpp"

#include <fcntl.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace accel::ckpt {
namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{32} << 20;

}  // namespace

RangeCopier::RangeCopier(File& target, std::span<std::byte> buffer,
                         std::function<void(std::uint64_t)> progress)
    : target_(target), buffer_(buffer), progress_(std::move(progress)) {}

void RangeCopier::copy(const File& source, std::uint64_t from, std::uint64_t to, std::uint64_t count) {
  while (count > 0) {
    std::uint64_t done = in_kernel_ ? copy_in_kernel(source, from, to, std::min(count, kPieceBytes)) : 0;
    if (done == 0) {
      // The kernel copies nothing at the end of the source, too; there read_at throws an Error.
      const std::span<std::byte> piece = buffer_.first(std::min<std::uint64_t>(count, buffer_.size()));
      source.read_at(from, piece);
      target_.write_at(to, piece);
      done = piece.size();
    }
    // Starts the write-back, so that the sync at the end finds little left to do.
    ::sync_file_range(target_.fd(), static_cast<off_t>(to), static_cast<off_t>(done), SYNC_FILE_RANGE_WRITE);
    from += done;
    to += done;
    count -= done;
    progress_(done);
  }
}

std::uint64_t RangeCopier::copy_in_kernel(const File& source, std::uint64_t from, std::uint64_t to,
                                          std::uint64_t count) {
  const std::optional<std::uint64_t> done = target_.copy_from(source, from, to, count);
  if (!done) in_kernel_ = false;
  return done.value_or(0);
}

}  // namespace accel::ckpt
