#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/files/file.hpp"
#include "ckpt/io/byte_source.hpp"

namespace accel::ckpt {

/// The unpacked bytes of a zstd stream in a file, of one frame or several. It takes the memory of a decoder,
/// whatever the stream's size. Reading on from where the last read ended is cheap. Going back unpacks from
/// the start again, except within the last block and, after size() was called, near the end. Throws Error
/// (kCorrupt) for a stream that is broken or ends early.
class ZstdSource final : public ByteSource {
 public:
  /// Throws Error (kCorrupt) if the range reaches beyond the file.
  ZstdSource(File file, PackedRange range);
  ~ZstdSource() override;

  /// Bytes of the unpacked stream. The first call unpacks all of it.
  [[nodiscard]] std::uint64_t size() override;
  void read_at(std::uint64_t offset, std::span<std::byte> out) override;
  [[nodiscard]] std::string name() const override;

  [[nodiscard]] const PackedRange& range() const { return range_; }

 private:
  struct Decoder;

  void restart();
  /// Unpacks the next block; false at the end of the stream.
  bool next_block();

  File file_;
  PackedRange range_;
  std::unique_ptr<Decoder> decoder_;
  std::vector<std::byte> packed_;  ///< The input, of which [packed_at_, packed_end_) is not yet unpacked.
  std::size_t packed_at_ = 0;
  std::size_t packed_end_ = 0;
  std::uint64_t packed_read_ = 0;  ///< Bytes of the range that have been read.
  bool frame_open_ = false;        ///< The stream must not end here.
  std::vector<std::byte> block_;   ///< The output that was unpacked last.
  std::uint64_t block_begin_ = 0;  ///< The position of block_ in all output.
  std::uint64_t block_end_ = 0;
  std::vector<std::byte> tail_;  ///< The last bytes of all output, when the size is known.
  std::optional<std::uint64_t> size_;
};

}  // namespace accel::ckpt
