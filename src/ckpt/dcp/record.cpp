#include "ckpt/dcp/record.hpp"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "ckpt/io/crc32.hpp"
#include "ckpt/io/endian.hpp"

namespace accel::ckpt {
namespace {

constexpr std::string_view kMagic = "ACCELREC";
constexpr std::uint32_t kRecordVersion = 1;
constexpr std::size_t kSumAt = 20;  // The CRC covers all bytes behind it.
constexpr std::uint64_t kLimitBytes = std::uint64_t{16} << 20;

enum : std::uint8_t { kObject = 0, kTensor = 1 };
enum : std::uint8_t { kStringKey = 0, kIntegerKey = 1 };

[[noreturn]] void reject(const std::string& why) {
  throw Error(ErrorKind::kCorrupt, fmt::format("an item record {}", why));
}

void put_text(std::string& out, std::string_view text, std::size_t length_width) {
  put_uint(out, text.size(), length_width);
  out += text;
}

void put_key(std::string& out, const PathKey& key) {
  if (const auto* text = std::get_if<std::string>(&key)) {
    put_uint(out, kStringKey, 1);
    put_text(out, *text, 4);
  } else {
    put_uint(out, kIntegerKey, 1);
    put_uint(out, static_cast<std::uint64_t>(std::get<std::int64_t>(key)), 8);
  }
}

// Reads a record from front to back.
class Parser {
 public:
  explicit Parser(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::uint64_t number(std::size_t width) { return get_uint(take(width), 0, width); }

  std::int64_t integer() { return static_cast<std::int64_t>(number(8)); }

  std::string text(std::size_t length_width) { return std::string(text_of(take(number(length_width)))); }

  void expect_end() const {
    if (at_ != bytes_.size()) reject("has bytes behind its end");
  }

 private:
  std::span<const std::byte> take(std::uint64_t count) {
    if (count > bytes_.size() - at_) reject("ends early");
    const auto part = bytes_.subspan(at_, count);
    at_ += count;
    return part;
  }

  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
};

PathKey take_key(Parser& parser) {
  switch (parser.number(1)) {
    case kStringKey:
      return parser.text(4);
    case kIntegerKey:
      return parser.integer();
    default:
      reject("has a key of unknown type");
  }
}

ItemRecord::Chunk take_chunk(Parser& parser) {
  ItemRecord::Chunk chunk;
  const std::string dtype = parser.text(1);
  const std::optional<DType> known = dtype_of_torch_name(dtype);
  if (!known) reject(fmt::format("has the unknown dtype '{}'", dtype));
  chunk.dtype = *known;
  const std::uint64_t dims = parser.number(1);
  for (std::uint64_t d = 0; d < dims; ++d) {
    chunk.shape.push_back(parser.integer());
    chunk.box.offsets.push_back(parser.integer());
    chunk.box.sizes.push_back(parser.integer());
  }
  (void)Box::whole(chunk.shape).numel();
  check_within(chunk.box, chunk.shape);
  return chunk;
}

}  // namespace

std::string encode_item_record(const ItemRecord& record) {
  std::string body;
  put_uint(body, record.rank, 4);
  put_uint(body, record.index, 4);
  put_uint(body, record.count, 4);
  put_uint(body, record.offset, 8);
  put_uint(body, record.length, 8);
  put_uint(body, record.path.size(), 2);
  for (const PathKey& key : record.path) put_key(body, key);
  put_uint(body, record.chunk ? kTensor : kObject, 1);
  if (record.chunk) {
    put_text(body, torch_name(record.chunk->dtype), 1);
    put_uint(body, record.chunk->shape.size(), 1);
    for (std::size_t d = 0; d < record.chunk->shape.size(); ++d) {
      for (const std::int64_t number :
           {record.chunk->shape[d], record.chunk->box.offsets[d], record.chunk->box.sizes[d]}) {
        put_uint(body, static_cast<std::uint64_t>(number), 8);
      }
    }
  }
  std::string out(kMagic);
  put_uint(out, kRecordVersion, 4);
  put_uint(out, kItemRecordHead + body.size(), 8);
  put_uint(out, crc32(std::as_bytes(std::span(body))), 4);
  return out + body;
}

bool looks_like_item_record(std::span<const std::byte> bytes) { return text_of(bytes).starts_with(kMagic); }

std::optional<std::uint64_t> item_record_bytes(std::span<const std::byte> head) {
  if (head.size() < kItemRecordHead || !looks_like_item_record(head)) return std::nullopt;
  const std::uint64_t bytes = get_uint(head, kMagic.size() + 4, 8);
  if (bytes < kItemRecordHead || bytes > kLimitBytes) return std::nullopt;
  return bytes;
}

ItemRecord decode_item_record(std::span<const std::byte> bytes) {
  const std::optional<std::uint64_t> size = item_record_bytes(bytes);
  if (!size || *size != bytes.size()) reject("has a broken head");
  const std::uint64_t version = get_uint(bytes, kMagic.size(), 4);
  if (version != kRecordVersion) reject(fmt::format("has the unknown version {}", version));
  const std::span<const std::byte> body = bytes.subspan(kItemRecordHead);
  if (crc32(body) != get_uint(bytes, kSumAt, 4)) reject("has the wrong checksum");

  Parser parser(body);
  ItemRecord record;
  record.rank = static_cast<std::uint32_t>(parser.number(4));
  record.index = static_cast<std::uint32_t>(parser.number(4));
  record.count = static_cast<std::uint32_t>(parser.number(4));
  record.offset = parser.number(8);
  record.length = parser.number(8);
  const std::uint64_t keys = parser.number(2);
  for (std::uint64_t k = 0; k < keys; ++k) record.path.push_back(take_key(parser));
  switch (parser.number(1)) {
    case kTensor:
      record.chunk = take_chunk(parser);
      break;
    case kObject:
      break;
    default:
      reject("describes neither a tensor nor an object");
  }
  parser.expect_end();
  if (record.path.empty() || record.index >= record.count) reject("contradicts itself");
  return record;
}

}  // namespace accel::ckpt
