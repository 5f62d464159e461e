#include "ckpt/io/zstd_source.hpp"

#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"

namespace accel::ckpt {
namespace {

// Bytes kept from the end: enough for the central directory of a zip archive and what follows it.
constexpr std::size_t kTailBytes = std::size_t{64} << 10;

}  // namespace

struct ZstdSource::Decoder {
  struct Free {
    void operator()(ZSTD_DCtx* freed) const { ZSTD_freeDCtx(freed); }
  };
  std::unique_ptr<ZSTD_DCtx, Free> context{ZSTD_createDCtx()};
};

ZstdSource::ZstdSource(File file, PackedRange range)
    : file_(std::move(file)),
      range_(range),
      decoder_(std::make_unique<Decoder>()),
      packed_(ZSTD_DStreamInSize()),
      block_(ZSTD_DStreamOutSize()) {
  if (!decoder_->context) throw std::bad_alloc();
  const std::uint64_t file_bytes = file_.size();
  if (checked_add(range.offset, range.bytes) > file_bytes) {
    throw Error(ErrorKind::kCorrupt,
                fmt::format("'{}' has {} bytes, but bytes {} to {} are needed", file_.path().string(),
                            file_bytes, range.offset, range.offset + range.bytes))
        .hint("the file may be truncated");
  }
}

ZstdSource::~ZstdSource() = default;

std::string ZstdSource::name() const {
  return fmt::format("{}, zstd stream at byte {}", file_.path().string(), range_.offset);
}

void ZstdSource::restart() {
  ZSTD_DCtx_reset(decoder_->context.get(), ZSTD_reset_session_only);
  packed_at_ = packed_end_ = 0;
  packed_read_ = 0;
  frame_open_ = false;
  block_begin_ = block_end_ = 0;
}

bool ZstdSource::next_block() {
  block_begin_ = block_end_;
  ZSTD_outBuffer out{block_.data(), block_.size(), 0};
  while (out.pos == 0) {
    if (packed_at_ == packed_end_) {
      const std::uint64_t left = range_.bytes - packed_read_;
      // Within a frame the decoder may still hold output, which needs no further input.
      if (left == 0 && !frame_open_) break;
      packed_at_ = 0;
      packed_end_ = static_cast<std::size_t>(std::min<std::uint64_t>(left, packed_.size()));
      file_.read_at(range_.offset + packed_read_, std::span(packed_).first(packed_end_));
      packed_read_ += packed_end_;
    }
    ZSTD_inBuffer in{packed_.data() + packed_at_, packed_end_ - packed_at_, 0};
    const std::size_t result = ZSTD_decompressStream(decoder_->context.get(), &out, &in);
    if (ZSTD_isError(result) != 0) {
      throw Error(ErrorKind::kCorrupt, fmt::format("{} is broken: {}", name(), ZSTD_getErrorName(result)));
    }
    frame_open_ = result != 0;
    packed_at_ += in.pos;
    if (in.pos == 0 && out.pos == 0 && packed_read_ == range_.bytes && packed_at_ == packed_end_) {
      throw Error(ErrorKind::kCorrupt, fmt::format("{} ends within a frame", name()))
          .hint("the file may be truncated");
    }
  }
  block_end_ = block_begin_ + out.pos;
  return out.pos > 0;
}

std::uint64_t ZstdSource::size() {
  if (size_) return *size_;
  restart();
  std::vector<std::byte> tail;
  while (next_block()) {
    const auto block = std::span(block_).first(static_cast<std::size_t>(block_end_ - block_begin_));
    tail.insert(tail.end(), block.begin(), block.end());
    if (tail.size() > kTailBytes)
      tail.erase(tail.begin(), tail.end() - static_cast<std::ptrdiff_t>(kTailBytes));
  }
  tail_ = std::move(tail);
  size_ = block_end_;
  return *size_;
}

void ZstdSource::read_at(std::uint64_t offset, std::span<std::byte> out) {
  if (out.empty()) return;
  const std::uint64_t end = checked_add<std::uint64_t>(offset, out.size());
  if (size_ && end <= *size_ && offset >= *size_ - tail_.size()) {
    std::memcpy(out.data(), tail_.data() + (offset - (*size_ - tail_.size())), out.size());
    return;
  }
  if (offset < block_begin_) restart();
  while (true) {
    if (offset < block_end_) {
      const std::size_t count = std::min<std::uint64_t>(out.size(), block_end_ - offset);
      std::memcpy(out.data(), block_.data() + (offset - block_begin_), count);
      out = out.subspan(count);
      offset += count;
      if (out.empty()) return;
    }
    if (!next_block()) {
      throw Error(ErrorKind::kCorrupt,
                  fmt::format("{} unpacks to {} bytes, but byte {} is needed", name(), block_end_, end - 1));
    }
  }
}

}  // namespace accel::ckpt
