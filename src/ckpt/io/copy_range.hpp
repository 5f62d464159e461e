#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "base/files/file.hpp"

namespace accel::ckpt {

/// Copies byte ranges into one target file: within the kernel where that works, else through `buffer`.
class RangeCopier {
 public:
  /// `progress` is called with the bytes of each piece that was written.
  RangeCopier(File& target, std::span<std::byte> buffer, std::function<void(std::uint64_t)> progress);

  /// Copies `count` bytes from `from` in `source` to `to` in the target. Throws Error (kCorrupt) if the
  /// source ends early.
  void copy(const File& source, std::uint64_t from, std::uint64_t to, std::uint64_t count);

 private:
  /// Bytes copied; 0 if the kernel cannot do it between these files.
  std::uint64_t copy_in_kernel(const File& source, std::uint64_t from, std::uint64_t to, std::uint64_t count);

  File& target_;
  std::span<std::byte> buffer_;
  std::function<void(std::uint64_t)> progress_;
  bool in_kernel_ = true;
};

}  // namespace accel::ckpt
