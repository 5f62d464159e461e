#include "data/files/token_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

#include "base/error.hpp"
#include "ckpt/io/endian.hpp"
#include "data/files/npy_header.hpp"

namespace accel {
namespace {

using namespace std::string_view_literals;
using ckpt::text_of;

constexpr std::size_t kLlmcHeaderBytes = 1024;
constexpr std::string_view kNpyMagic = "\x93NUMPY"sv;

struct LlmcKind {
  std::uint32_t magic;
  std::uint32_t version;
  unsigned token_bytes;
};
constexpr std::array<LlmcKind, 2> kLlmcKinds = {{{20240520, 1, 2}, {20240801, 7, 4}}};

/// A format that is not tokens or text: the first bytes that only its files have, and the names of such
/// files.
struct KnownFormat {
  std::string_view title;
  std::size_t offset;  ///< The position of the magic bytes in the file.
  std::string_view magic;
  std::array<std::string_view, 4> extensions;
};
constexpr std::array<KnownFormat, 14> kKnownFormats = {{
    {"a NumPy array", 0, kNpyMagic, {".npy"}},
    {"a zip archive", 0, "PK\x03\x04"sv, {".zip", ".npz", ".pt", ".pth"}},
    {"a gzip stream", 0, "\x1f\x8b\x08"sv, {".gz", ".tgz"}},
    {"a zstd stream", 0, "\x28\xb5\x2f\xfd"sv, {".zst"}},
    {"an xz stream", 0, "\xfd\x37zXZ\0"sv, {".xz"}},
    {"a bzip2 stream", 4, "1AY&SY"sv, {".bz2"}},
    {"an HDF5 file", 0, "\x89HDF\r\n\x1a\n"sv, {".h5", ".hdf5"}},
    {"a Parquet file", 0, "PAR1\x15"sv, {".parquet"}},
    {"an Arrow file", 0, "ARROW1\0\0"sv, {".arrow", ".feather"}},
    {"a tar archive", 257, "ustar"sv, {".tar"}},
    {"a GGUF file", 0, "GGUF"sv, {".gguf"}},
    {"a Megatron index", 0, "MMIDIDX\0\0"sv, {".idx"}},
    {"a pickle", 0, {}, {".pkl", ".pickle"}},
    {"a safetensors file", 0, {}, {".safetensors"}},
}};
/// Text whose bytes are not what a model is to learn.
constexpr std::array kRecordExtensions = {".json"sv, ".jsonl"sv, ".ndjson"sv,
                                          ".csv"sv,  ".tsv"sv,   ".parquet"sv};
constexpr std::array kTextExtensions = {".txt"sv, ".md"sv};

[[noreturn]] void refuse(std::string message, std::string hint) {
  throw Error(ErrorKind::kUsage, std::move(message)).hint(std::move(hint));
}

std::uint32_t word_at(std::span<const std::byte> bytes, std::size_t index) {
  std::uint32_t word = 0;
  std::memcpy(&word, bytes.data() + index * sizeof word, sizeof word);
  return word;
}

bool is_safetensors(std::span<const std::byte> bytes) {
  if (bytes.size() < 10) return false;
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  return header >= 2 && header <= bytes.size() - 8 && text_of(bytes)[8] == '{';
}

/// Whether this is a pickle of protocol 2 to 5: the opcode PROTO, then FRAME with its length, or the magic
/// number of torch's old format.
bool is_pickle(std::string_view text) {
  if (text.size() < 11 || text[0] != '\x80' || text[1] < 2 || text[1] > 5) return false;
  if (text.substr(2).starts_with("\x8a\x0a\x6c\xfc\x9c\x46\xf9")) return true;
  std::uint64_t frame = 0;
  std::memcpy(&frame, text.data() + 3, sizeof frame);
  return text[2] == '\x95' && frame > 0 && frame <= text.size() - 11;
}

/// Returns the format that the first bytes claim.
std::optional<std::string_view> claimed_by_head(std::span<const std::byte> bytes) {
  const std::string_view text = text_of(bytes);
  for (const KnownFormat& format : kKnownFormats) {
    if (!format.magic.empty() && text.size() >= format.offset &&
        text.substr(format.offset).starts_with(format.magic)) {
      return format.title;
    }
  }
  if (is_safetensors(bytes)) return "a safetensors file";
  if (is_pickle(text)) return "a pickle";
  return std::nullopt;
}

/// Returns the format that the name claims.
std::optional<std::string_view> claimed_by_name(const std::string& extension) {
  for (const KnownFormat& format : kKnownFormats) {
    for (const std::string_view known : format.extensions) {
      if (!known.empty() && extension == known) return format.title;
    }
  }
  return std::nullopt;
}

/// Whether the first bytes are UTF-8 without control characters. Tokens of two or four bytes practically
/// never are, because small tokens have zero bytes.
bool looks_like_text(std::span<const std::byte> bytes) {
  constexpr std::size_t kExamined = 4096;
  constexpr std::size_t kFewest = 16;
  if (bytes.size() < kFewest) return false;
  const std::string_view text = text_of(bytes).substr(0, kExamined);
  std::size_t follow = 0;  // Bytes that the current character still needs.
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (follow > 0) {
      if ((byte & 0xc0U) != 0x80U) return false;
      --follow;
    } else if (byte >= 0x80) {
      if (byte < 0xc2 || byte > 0xf4) return false;
      follow = byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
    } else if ((byte < 0x20 && c != '\n' && c != '\r' && c != '\t') || byte == 0x7f) {
      return false;
    }
  }
  return true;
}

/// The types of a .npy array that can hold tokens.
struct NpyType {
  std::string_view descr;
  unsigned bytes;
  bool is_signed;
};
constexpr std::array<NpyType, 4> kNpyTypes = {
    {{"<u2"sv, 2, false}, {"<u4"sv, 4, false}, {"<i4"sv, 4, true}, {"<i8"sv, 8, true}}};

TokenEncoding npy_encoding(std::span<const std::byte> bytes) {
  const NpyHeader header = read_npy_header(bytes);
  const auto type = std::find_if(kNpyTypes.begin(), kNpyTypes.end(),
                                 [&](const NpyType& known) { return header.descr == known.descr; });
  if (type == kNpyTypes.end()) {
    refuse(fmt::format("the .npy array is not of type little-endian uint16, uint32, int32 or int64, but {}",
                       header.descr),
           "numpy.save(path, tokens.astype('<u4')) writes such an array");
  }
  if (header.shape.size() != 1) {
    refuse(fmt::format("the .npy array is not one-dimensional, its shape is {}{}", header.shape_text(),
                       header.is_fortran_order ? " in Fortran order" : ""),
           "numpy.save(path, tokens.reshape(-1)) writes its rows one after the other");
  }
  const std::size_t payload = bytes.size() - header.bytes;
  const std::uint64_t tokens = header.shape.front();
  if (tokens > payload || tokens * type->bytes != payload) {
    throw Error(ErrorKind::kUsage, fmt::format("the .npy header says {} values of {} bytes, but {} bytes "
                                               "follow it",
                                               tokens, type->bytes, payload))
        .hint("the file may be truncated");
  }
  return {header.bytes, type->bytes, type->is_signed};
}

std::uint32_t byte_swapped(std::uint32_t word) {
  return (word >> 24) | ((word >> 8) & 0xff00U) | ((word << 8) & 0xff0000U) | (word << 24);
}

/// Returns the encoding of llm.c's token file, or nullopt if the file does not begin with one of its magic
/// numbers.
std::optional<TokenEncoding> llmc_encoding(std::span<const std::byte> bytes) {
  if (bytes.size() < 4) return std::nullopt;
  const std::uint32_t magic = word_at(bytes, 0);
  const auto kind = std::find_if(kLlmcKinds.begin(), kLlmcKinds.end(), [&](const LlmcKind& known) {
    return known.magic == magic || known.magic == byte_swapped(magic);
  });
  if (kind == kLlmcKinds.end()) return std::nullopt;
  if (kind->magic != magic)
    throw Error(ErrorKind::kUsage, "llm.c's header is big-endian, but only little-endian is supported");
  if (bytes.size() < kLlmcHeaderBytes) {
    throw Error(ErrorKind::kUsage, fmt::format("llm.c's header of {} bytes is truncated, the file has {}",
                                               kLlmcHeaderBytes, bytes.size()));
  }
  const std::uint32_t version = word_at(bytes, 1);
  if (version != kind->version) {
    throw Error(
        ErrorKind::kUsage,
        fmt::format("llm.c's header has magic {} and version {}, supported are {} with version {} and "
                    "{} with version {}",
                    magic, version, kLlmcKinds[0].magic, kLlmcKinds[0].version, kLlmcKinds[1].magic,
                    kLlmcKinds[1].version));
  }
  const std::size_t stated = word_at(bytes, 2);
  const std::size_t payload = bytes.size() - kLlmcHeaderBytes;
  if (stated * kind->token_bytes != payload) {
    throw Error(ErrorKind::kUsage,
                fmt::format("its header says {} tokens of {} bytes, but {} bytes follow it", stated,
                            kind->token_bytes, payload));
  }
  return TokenEncoding{kLlmcHeaderBytes, kind->token_bytes};
}

/// Whether this looks like token ids of type uint32. Read as uint16, they have a small number at every second
/// place, which is zero for ids below 65536.
bool looks_like_u32(std::span<const std::byte> bytes) {
  constexpr std::uint32_t kFewHigh = 32;        // No vocabulary has 2 million tokens.
  constexpr std::uint32_t kLeastLow = 1 << 15;  // If ids exceed 65535, the low halves have all sizes.
  constexpr std::size_t kExamined = 4096;
  const std::size_t words = bytes.size() / 4;
  if (words < 16 || bytes.size() % 4 != 0) return false;
  std::uint32_t most_high = 0;
  std::uint32_t most_low = 0;
  // The whole file is sampled, because it may begin with padding.
  const std::size_t step = std::max<std::size_t>(words / kExamined, 1);
  for (std::size_t i = 0; i < words; i += step) {
    most_high = std::max(most_high, word_at(bytes, i) >> 16);
    most_low = std::max(most_low, word_at(bytes, i) & 0xffff);
  }
  if (most_high == 0) return most_low > 0;
  return most_high < kFewHigh && most_low >= kLeastLow;
}

template <class Names>
bool is_one_of(const Names& names, const std::string& extension) {
  return std::find(names.begin(), names.end(), extension) != names.end();
}

TokenEncoding text_encoding(std::optional<std::string_view> claim, std::span<const std::byte> bytes) {
  if (claim) {
    refuse(fmt::format("'format: text' reads every byte as a token, but this is {}", *claim),
           "use a file of plain text; format: tokens reads tokens, and format: tensors safetensors files");
  }
  if (llmc_encoding(bytes))
    refuse("'format: text' reads every byte as a token, but this is llm.c's token file",
           "use format: tokens");
  return {0, 1};
}

/// Returns the encoding of tokens without a header, which `dtype` asks for.
TokenEncoding raw_encoding(const std::string& dtype, std::optional<std::string_view> claim,
                           const std::filesystem::path& path, std::span<const std::byte> bytes) {
  const std::string extension = path.extension().string();
  const std::string asked = fmt::format("'dtype: {}' asks for tokens without a header", dtype);
  if (claim) {
    refuse(fmt::format("{}, but this is {}", asked, *claim),
           "omit dtype for .npy; convert files of other formats");
  }
  if (llmc_encoding(bytes))
    refuse(fmt::format("{}, but this is llm.c's token file", asked), "omit dtype: the header has it");
  if (is_one_of(kRecordExtensions, extension))
    refuse(fmt::format("{}, but this is text", asked), "use a tokenizer's output");
  if (is_one_of(kTextExtensions, extension) || looks_like_text(bytes))
    refuse(fmt::format("{}, but this is text", asked), "use format: text, or a tokenizer's output");
  if (dtype == "uint16" && looks_like_u32(bytes))
    refuse(fmt::format("{}, but this file looks like uint32", asked),
           "set dtype: uint32, or save it as .npy, which stores the type");
  return {0, dtype == "uint32" ? 4U : 2U};
}

}  // namespace

void require_text_name(const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  if (!is_one_of(kRecordExtensions, extension)) return;
  refuse(
      fmt::format("'format: text' reads every byte as a token, but a {} file has records", extension),
      "write the text of the records into a file of its own, or its tokens into a .npy; format: jsonl reads "
      "lines of token ids");
}

TokenEncoding token_encoding(const std::string& format, const std::string& dtype,
                             const std::filesystem::path& path, std::span<const std::byte> bytes) {
  const std::string extension = path.extension().string();
  const auto by_name = claimed_by_name(extension);
  const auto by_head = claimed_by_head(bytes);
  // Text may have any name: in parallel corpora `.pt` means Portuguese.
  if (format != "text" && by_name && by_head != by_name) {
    const std::string found = by_head ? fmt::format("its first bytes are those of {}", *by_head)
                                      : "its first bytes are not those of one";
    refuse(fmt::format("its name says that it is {}, but {}", *by_name, found),
           "give the file a name that fits its content");
  }
  if (format == "text") {
    require_text_name(path);
    return text_encoding(by_head, bytes);
  }
  if (!dtype.empty()) return raw_encoding(dtype, by_head, path, bytes);
  if (by_head == kKnownFormats.front().title) return npy_encoding(bytes);
  if (const auto encoding = llmc_encoding(bytes)) return *encoding;
  refuse(fmt::format("this is {}, neither .npy nor llm.c's token file",
                     by_head ? *by_head : "a file without a known header"),
         "set dtype: uint16 or dtype: uint32 with format: tokens if it holds tokens without a header");
}

}  // namespace accel
