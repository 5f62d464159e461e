#include "train/data/token_stream.hpp"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/error.hpp"

namespace accel::train {
namespace {

constexpr std::size_t kLlmcHeaderBytes = 1024;
constexpr std::uint32_t kLlmcMagicU16 = 20240520;
constexpr std::uint32_t kLlmcMagicU32 = 20240801;

std::vector<std::string> matches_of(const std::string& pattern) {
  glob_t found{};
  const int result = ::glob(pattern.c_str(), GLOB_ERR, nullptr, &found);
  std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + (result == 0 ? found.gl_pathc : 0));
  ::globfree(&found);
  if (paths.empty()) throw Error(ErrorKind::kUsage, fmt::format("no file matches '{}'", pattern));
  return paths;
}

std::uint32_t word_at(std::span<const std::byte> bytes, std::size_t index) {
  std::uint32_t word = 0;
  std::memcpy(&word, bytes.data() + index * sizeof word, sizeof word);
  return word;
}

struct Encoding {
  std::size_t header_bytes = 0;
  unsigned token_bytes = 2;
};

/// The .npy format, versions 1 to 3: magic, version, header length, a Python dict literal as text.
Encoding npy_encoding(std::span<const std::byte> bytes) {
  const auto byte_at = [&](std::size_t i) { return std::to_integer<std::size_t>(bytes[i]); };
  if (bytes.size() < 12) throw Error(ErrorKind::kUsage, "the .npy header is truncated");
  const bool wide = byte_at(6) >= 2;
  const std::size_t length = wide ? word_at(bytes, 2) : byte_at(8) + 256 * byte_at(9);
  const std::size_t start = wide ? 12 : 10;
  if (length > bytes.size() - start) throw Error(ErrorKind::kUsage, "the .npy header is truncated");
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + start, length);
  const bool u16 = header.find("'descr': '<u2'") != std::string_view::npos;
  const bool u32 = header.find("'descr': '<u4'") != std::string_view::npos;
  if (!u16 && !u32) {
    throw Error(ErrorKind::kUsage,
                fmt::format("the .npy array is not of little-endian uint16 or uint32: {}", header));
  }
  const std::size_t shape = header.find("'shape': (");
  const std::size_t close = header.find(')', shape == std::string_view::npos ? 0 : shape);
  if (shape == std::string_view::npos || close == std::string_view::npos ||
      header.substr(shape, close - shape).find(", ") != std::string_view::npos) {
    throw Error(ErrorKind::kUsage, fmt::format("the .npy array is not one-dimensional: {}", header));
  }
  const Encoding encoding{start + length, u16 ? 2U : 4U};
  const std::size_t payload = bytes.size() - encoding.header_bytes;
  const std::size_t digits = shape + std::string_view("'shape': (").size();
  std::size_t tokens = 0;
  const bool parsed =
      std::from_chars(header.data() + digits, header.data() + header.size(), tokens).ec == std::errc();
  if (!parsed || tokens > payload || tokens * encoding.token_bytes != payload) {
    throw Error(ErrorKind::kUsage, fmt::format("the .npy header says {}, the file holds {} bytes behind it",
                                               header.substr(shape, close + 1 - shape), payload))
        .hint("the file may be truncated");
  }
  return encoding;
}

/// Token ids of uint32 are small numbers at every second place if they are read as uint16: zeros below 65536.
bool looks_like_u32(std::span<const std::byte> bytes) {
  constexpr std::uint32_t kFewHigh = 32;        // No vocabulary has 2 million tokens.
  constexpr std::uint32_t kLeastLow = 1 << 15;  // With ids beyond 65535 the low halves are of all sizes.
  const std::size_t words = std::min<std::size_t>(bytes.size() / 4, 4096);
  if (words < 16 || bytes.size() % 4 != 0) return false;
  std::uint32_t most_high = 0;
  std::uint32_t most_low = 0;
  for (std::size_t i = 0; i < words; ++i) {
    most_high = std::max(most_high, word_at(bytes, i) >> 16);
    most_low = std::max(most_low, word_at(bytes, i) & 0xffff);
  }
  return most_high == 0 || (most_high < kFewHigh && most_low >= kLeastLow);
}

Encoding bin_encoding(std::span<const std::byte> bytes) {
  if (bytes.size() >= kLlmcHeaderBytes) {
    const std::uint32_t magic = word_at(bytes, 0);
    const std::uint32_t version = word_at(bytes, 1);
    const std::size_t tokens = word_at(bytes, 2);
    for (const auto& [known, known_version, token_bytes] :
         {std::tuple{kLlmcMagicU16, 1U, 2U}, std::tuple{kLlmcMagicU32, 7U, 4U}}) {
      if (magic != known || version != known_version) continue;
      if ((bytes.size() - kLlmcHeaderBytes) / token_bytes != tokens) {
        throw Error(ErrorKind::kUsage, fmt::format("its header says {} tokens, the file holds {}", tokens,
                                                   (bytes.size() - kLlmcHeaderBytes) / token_bytes));
      }
      return {kLlmcHeaderBytes, token_bytes};
    }
  }
  if (looks_like_u32(bytes)) {
    throw Error(ErrorKind::kUsage, "a flat .bin is read as uint16, but this one looks like uint32")
        .hint("save it as .npy, which says its type");
  }
  return {0, 2};
}

Encoding encoding_of(const std::string& format, std::span<const std::byte> bytes) {
  if (format == "text") return {0, 1};
  if (format != "tokens") throw Error(ErrorKind::kUsage, fmt::format("no such data format: '{}'", format));
  static constexpr std::string_view kNpyMagic = "\x93NUMPY";
  if (bytes.size() >= kNpyMagic.size() &&
      std::memcmp(bytes.data(), kNpyMagic.data(), kNpyMagic.size()) == 0) {
    return npy_encoding(bytes);
  }
  return bin_encoding(bytes);
}

template <class Token>
void copy_tokens(const std::byte* from, std::span<std::int64_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Token token;
    std::memcpy(&token, from + i * sizeof token, sizeof token);
    out[i] = token;
  }
}

}  // namespace

TokenStream TokenStream::open(const std::string& format, const std::string& pattern) {
  TokenStream stream;
  for (const std::string& path : matches_of(pattern)) {
    try {
      Part part{MappedFile(path)};
      const auto bytes = part.file.bytes();
      const Encoding encoding = encoding_of(format, bytes);
      part.header_bytes = encoding.header_bytes;
      part.token_bytes = encoding.token_bytes;
      const std::size_t payload = bytes.size() - part.header_bytes;
      if (payload == 0) throw Error(ErrorKind::kUsage, "the file is empty");
      if (payload % part.token_bytes != 0) {
        throw Error(ErrorKind::kUsage, fmt::format("{} bytes are not a whole number of {}-byte tokens",
                                                   payload, part.token_bytes));
      }
      part.begin = stream.size_;
      part.size = static_cast<std::int64_t>(payload / part.token_bytes);
      stream.size_ += part.size;
      stream.parts_.push_back(std::move(part));
    } catch (Error& error) {
      error.add_context(fmt::format("data file '{}'", path));
      throw;
    }
  }
  return stream;
}

void TokenStream::read(std::int64_t begin, std::span<std::int64_t> out) const {
  auto part = std::upper_bound(parts_.begin(), parts_.end(), begin,
                               [](std::int64_t position, const Part& p) { return position < p.begin; });
  --part;
  while (!out.empty()) {
    if (part == parts_.end()) throw Error(ErrorKind::kFailure, "reading past the end of the data");
    const std::int64_t skip = begin - part->begin;
    const auto count = static_cast<std::size_t>(
        std::min<std::int64_t>(part->size - skip, static_cast<std::int64_t>(out.size())));
    const std::byte* from =
        part->file.bytes().data() + part->header_bytes + static_cast<std::size_t>(skip) * part->token_bytes;
    switch (part->token_bytes) {
      case 1:
        copy_tokens<std::uint8_t>(from, out.first(count));
        break;
      case 2:
        copy_tokens<std::uint16_t>(from, out.first(count));
        break;
      default:
        copy_tokens<std::uint32_t>(from, out.first(count));
        break;
    }
    out = out.subspan(count);
    begin += static_cast<std::int64_t>(count);
    ++part;
  }
}

}  // namespace accel::train
