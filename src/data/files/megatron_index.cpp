#include "data/files/megatron_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "ckpt/io/endian.hpp"

namespace accel {
namespace {

using namespace std::string_view_literals;
using ckpt::get_uint;

constexpr std::string_view kIndexMagic = "MMIDIDX\0\0"sv;
constexpr std::size_t kIndexHeaderBytes = 34;  // Magic, version, code of the dtype, two counts.
constexpr std::size_t kLengthBytes = 4;
constexpr std::size_t kPointerBytes = 8;

/// A dtype of tokens and its code in the index. The codes 6 and 7 are of floats.
struct IntegerType {
  std::uint64_t code;
  unsigned bytes;
  bool is_signed;
};
constexpr std::array<IntegerType, 6> kIntegerTypes = {
    {{1, 1, false}, {2, 1, true}, {3, 2, true}, {4, 4, true}, {5, 8, true}, {8, 2, false}}};

[[noreturn]] void refuse_index(std::string message) {
  throw Error(ErrorKind::kUsage, "the index " + std::move(message))
      .hint("write the .bin and the .idx file again with Megatron-LM's tools/preprocess_data.py");
}

/// The counts in the header, which fit the size of the file.
struct Counts {
  std::uint64_t sequences = 0;
  std::uint64_t documents = 0;  ///< The number of entries, which is one more than that of documents.
};

Counts counts_of(std::span<const std::byte> index) {
  const Counts counts{get_uint(index, 18, 8), get_uint(index, 26, 8)};
  const std::uint64_t rest = index.size() - kIndexHeaderBytes;
  constexpr std::uint64_t kSequenceBytes = kLengthBytes + kPointerBytes;
  // The counts are compared with what there is first, so that their products do not overflow.
  const bool is_small = counts.sequences <= rest / kSequenceBytes && counts.documents <= rest / kPointerBytes;
  const std::uint64_t needed =
      is_small ? counts.sequences * kSequenceBytes + counts.documents * kPointerBytes : 0;
  if (is_small && rest == needed) return counts;
  if (is_small && counts.sequences > 0 && rest == needed + counts.sequences) {
    throw Error(ErrorKind::kUsage, "the index has a mode for each sequence, so that not all are tokens")
        .hint("accel trains on the indices of text that Megatron-LM's GPTDataset reads");
  }
  refuse_index(fmt::format("says {} sequences and {} entries of documents, which its {} bytes do not have",
                           counts.sequences, counts.documents, index.size()));
}

/// Throws unless the sequences fill a file of `tokens_bytes` bytes one after the other.
void require_sequences(std::span<const std::byte> index, const Counts& counts, unsigned token_bytes,
                       std::uint64_t tokens_bytes) {
  const std::size_t pointers = kIndexHeaderBytes + counts.sequences * kLengthBytes;
  std::uint64_t end = 0;
  for (std::uint64_t i = 0; i < counts.sequences; ++i) {
    if (i % 65536 == 0) check_interrupted();
    const std::uint64_t length = get_uint(index, kIndexHeaderBytes + i * kLengthBytes, kLengthBytes);
    const std::uint64_t pointer = get_uint(index, pointers + i * kPointerBytes, kPointerBytes);
    if (pointer != end) refuse_index(fmt::format("puts sequence {} at byte {}, not at {}", i, pointer, end));
    // The length is of 32 bits and has a sign.
    if (length > INT32_MAX || length > (tokens_bytes - end) / token_bytes) {
      refuse_index(
          fmt::format("says that sequence {} has {} tokens of {} bytes from byte {} on, but the .bin file "
                      "has {} bytes",
                      i, static_cast<std::int32_t>(length), token_bytes, end, tokens_bytes));
    }
    end += length * token_bytes;
  }
  if (end != tokens_bytes)
    refuse_index(fmt::format("says {} bytes of tokens, but the .bin file has {}", end, tokens_bytes));
}

/// Throws unless the documents begin at the first sequence, are in order and end behind the last.
void require_documents(std::span<const std::byte> index, const Counts& counts) {
  const std::size_t begin = kIndexHeaderBytes + counts.sequences * (kLengthBytes + kPointerBytes);
  std::uint64_t last = 0;
  for (std::uint64_t i = 0; i < counts.documents; ++i) {
    if (i % 65536 == 0) check_interrupted();
    const std::uint64_t entry = get_uint(index, begin + i * kPointerBytes, kPointerBytes);
    if (entry < last || entry > counts.sequences || (i == 0 && entry != 0)) {
      refuse_index(
          fmt::format("says that document {} begins at sequence {}, but there are {}, and the one before "
                      "begins at {}",
                      i, entry, counts.sequences, last));
    }
    last = entry;
  }
}

}  // namespace

std::filesystem::path megatron_tokens_path(const std::filesystem::path& path) {
  if (path.extension() != ".idx") {
    throw Error(ErrorKind::kUsage, "'format: megatron' reads an index, whose name ends in .idx")
        .hint("name the .idx file; the .bin file of the same name has to lie beside it");
  }
  return std::filesystem::path(path).replace_extension(".bin");
}

TokenEncoding megatron_encoding(std::span<const std::byte> index, std::uint64_t tokens_bytes) {
  if (!ckpt::text_of(index).starts_with(kIndexMagic))
    refuse_index("does not begin with MMIDIDX and two zero bytes");
  if (index.size() < kIndexHeaderBytes)
    refuse_index(fmt::format("is truncated: it has {} bytes, and its header alone {}", index.size(),
                             kIndexHeaderBytes));
  if (const std::uint64_t version = get_uint(index, kIndexMagic.size(), 8); version != 1)
    refuse_index(fmt::format("is of version {}, and only version 1 is known", version));
  const std::uint64_t code = get_uint(index, 17, 1);
  const auto* const type = std::find_if(kIntegerTypes.begin(), kIntegerTypes.end(),
                                        [&](const IntegerType& known) { return known.code == code; });
  if (type == kIntegerTypes.end()) {
    refuse_index(
        fmt::format("says dtype {}, which is not one of whole numbers (1 to 5: uint8, int8, int16, int32, "
                    "int64; 8: uint16)",
                    code));
  }
  const Counts counts = counts_of(index);
  require_sequences(index, counts, type->bytes, tokens_bytes);
  require_documents(index, counts);
  return {0, type->bytes, type->is_signed};
}

}  // namespace accel
