#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/file.hpp"

namespace accel::ckpt {

/// A range of a file that holds a zstd stream.
struct PackedRange {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;

  friend bool operator==(const PackedRange&, const PackedRange&) = default;
};

/// Bytes that can be read at any offset: a file, or what a compressed part of one unpacks to.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  [[nodiscard]] virtual std::uint64_t size() = 0;
  /// Fills `out` from `offset`; the end before that is an Error (kCorrupt). Cheapest from front to back.
  virtual void read_at(std::uint64_t offset, std::span<std::byte> out) = 0;
  /// What messages call it.
  [[nodiscard]] virtual std::string name() const = 0;

 protected:
  ByteSource() = default;
};

/// All of a file, borrowed.
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
