#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/file.hpp"

namespace accel::train {

/// The tokens of one or more files as one stream, memory-mapped.
///
/// "text": the bytes themselves, vocabulary 256. "tokens": `.npy` (one dimension of uint16 or uint32), or
/// flat `.bin`, little-endian: uint16 with or without llm.c's header of 1024 bytes (magic 20240520, version
/// 1; version 7 of magic 20240801 is uint32).
class TokenStream {
 public:
  /// `pattern` is a path or a glob; its matches are concatenated in sorted order. No match, an empty file or
  /// a wrong format is an Error of kind kUsage.
  static TokenStream open(const std::string& format, const std::string& pattern);

  [[nodiscard]] std::int64_t size() const { return size_; }
  /// Windows of `length` + 1 tokens that start every `length` tokens; an incomplete last one does not count.
  [[nodiscard]] std::int64_t windows(std::int64_t length) const {
    return size_ <= 0 ? 0 : (size_ - 1) / length;
  }
  /// Copies tokens [begin, begin + out.size()) of the stream.
  void read(std::int64_t begin, std::span<std::int64_t> out) const;

 private:
  struct Part {
    MappedFile file;
    std::size_t header_bytes = 0;
    unsigned token_bytes = 1;
    std::int64_t begin = 0;  ///< Of its first token in the stream.
    std::int64_t size = 0;   ///< In tokens.
  };

  std::vector<Part> parts_;
  std::int64_t size_ = 0;
};

}  // namespace accel::train
