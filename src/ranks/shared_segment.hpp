#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/files/fd.hpp"

namespace accel {

/// Memory that processes of one machine share. It has no name in any file system: it is gone with the last
/// process that has it mapped, however that process ends, so nothing can be left behind.
///
/// One process creates the segment and hands its address() to the others, which open() it while the creator
/// keeps the address open. The size is fixed, and the memory is allocated from the start: a machine without
/// free memory is an error of create(), not a SIGBUS later.
class SharedSegment {
 public:
  /// Creates a segment of at least `bytes` zeros, aligned to a page.
  static SharedSegment create(std::size_t bytes);
  /// Maps the segment at `address`. An address of another machine or container, or one that is closed, is an
  /// Error of kind kFailure.
  static SharedSegment open(const std::string& address);

  /// Returns this mapping once more, for a rank that is another thread of this process.
  [[nodiscard]] SharedSegment same_mapping() const;

  /// Returns what open() takes. Only the creator has an address, until close_address().
  [[nodiscard]] std::string address() const;
  void close_address() { fd_.reset(); }

  [[nodiscard]] std::span<std::byte> bytes() const;

 private:
  SharedSegment() = default;
  SharedSegment(Fd fd, std::size_t mapped_bytes);

  Fd fd_;
  std::shared_ptr<std::byte> mapping_;
  std::size_t mapped_bytes_ = 0;
};

}  // namespace accel
