#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/files/file.hpp"

namespace accel::ckpt {

/// A range of a file that holds a zstd stream.
struct PackedRange {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;

  friend bool operator==(const PackedRange&, const PackedRange&) = default;
};

/// Bytes that can be read at any offset: those of a file, or those that a compressed range of a file unpacks
/// to.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  [[nodiscard]] virtual std::uint64_t size() = 0;
  /// Fills `out` with the bytes from `offset` on. Throws Error (kCorrupt) if the source ends before that.
  /// Reading from front to back is the cheapest order.
  virtual void read_at(std::uint64_t offset, std::span<std::byte> out) = 0;
  /// The name of the source in messages.
  [[nodiscard]] virtual std::string name() const = 0;

 protected:
  ByteSource() = default;
};

/// All bytes of a file, which must outlive the source.
class FileSource final : public ByteSource {
 public:
  explicit FileSource(const File& file) : file_(file) {}

  [[nodiscard]] std::uint64_t size() override { return file_.size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> out) override { file_.read_at(offset, out); }
  [[nodiscard]] std::string name() const override { return file_.path().string(); }

 private:
  const File& file_;
};

}  // namespace accel::ckpt
