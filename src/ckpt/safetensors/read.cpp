#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/error_context.hpp"
#include "base/files/json_text.hpp"
#include "base/interrupt.hpp"
#include "base/text.hpp"
#include "ckpt/io/endian.hpp"
#include "ckpt/io/foreign_format.hpp"
#include "ckpt/safetensors/header.hpp"

namespace accel::ckpt {
namespace {

using nlohmann::json;

constexpr std::string_view kMetadataKey = "__metadata__";
constexpr std::uint64_t kLengthBytes = 8;

// The official library parses the header with serde_json, which accepts this many levels.
constexpr int kDeepest = 127;

// Rejects a key that comes twice, as JSON parsers keep one of the two and differ in which: the name of a
// tensor, and a key of its entry or of the metadata. This is a pass of its own, as a callback of the parser
// would search all earlier entries at every entry. The parse that follows reports what is not JSON.
class KeyChecker : public nlohmann::detail::json_sax_acceptor<json> {
 public:
  bool key(std::string& name) {
    if (depth_ > 2) return true;
    std::set<std::string>& keys = depth_ == 1 ? names_ : keys_;
    if (!keys.insert(name).second)
      throw_corrupt(depth_ == 1 ? fmt::format("'{}' comes twice in the header", name)
                                : fmt::format("'{}' comes twice in an entry of the header", name));
    return true;
  }
  bool start_object(std::size_t /*size*/) { return enter(); }
  bool end_object() { return --depth_ >= 0; }
  bool start_array(std::size_t /*size*/) { return enter(); }
  bool end_array() { return --depth_ >= 0; }

 private:
  bool enter() {
    if (++depth_ == 2) keys_.clear();
    if (depth_ > kDeepest) throw_corrupt(fmt::format("the header nests more than {} deep", kDeepest));
    return true;
  }

  int depth_ = 0;
  std::set<std::string> names_;
  std::set<std::string> keys_;  // Those of the entry that is being read.
};

json header_json(std::string_view text) {
  if (!text.starts_with('{')) throw_corrupt("the header does not begin with '{'");
  KeyChecker checker;
  check_json_bytes(text);
  json::sax_parse(InterruptibleText(text.data()), InterruptibleText(text.data() + text.size()), &checker);
  try {
    return parse_json(text);
  } catch (const json::exception& e) {
    throw_corrupt(fmt::format("the header is not JSON: {}", without_json_tag(e.what())));
  }
}

std::uint64_t require_uint(const json& value, std::string_view what) {
  if (!value.is_number_unsigned()) throw_corrupt(fmt::format("{} is not a size: {}", what, value.dump()));
  return value.get<std::uint64_t>();
}

const json& require(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) throw_corrupt(fmt::format("'{}' is missing", key));
  return *found;
}

Dims shape_of(const json& shape) {
  if (!shape.is_array()) throw_corrupt("its shape is not an array");
  Dims dims;
  for (const json& dim : shape) {
    const std::uint64_t size = require_uint(dim, "a dimension");
    if (!std::in_range<std::int64_t>(size)) throw_corrupt(fmt::format("a dimension of {}", size));
    dims.push_back(static_cast<std::int64_t>(size));
  }
  return dims;
}

// Gives an entry whose shape is that of the header the shape of torch, and returns the bytes that it needs.
std::uint64_t pack(SafetensorsEntry& entry) {
  const DTypeInfo& info = info_of(entry.dtype);
  const std::int64_t numel = checked_numel(entry.shape);
  if (numel % info.safetensors_pack != 0) {
    throw_corrupt(fmt::format("shape {} {} does not fill its last byte", to_string(entry.shape),
                              info.safetensors_name));
  }
  const std::int64_t items = numel / info.safetensors_pack;
  if (entry.shape.empty() || entry.shape.back() % info.safetensors_pack == 0) {
    if (!entry.shape.empty()) entry.shape.back() /= info.safetensors_pack;
  } else {
    entry.obstacle = fmt::format("a tensor of {} of shape {}, whose rows share a byte", info.safetensors_name,
                                 to_string(entry.shape));
    entry.shape = {items};
  }
  return checked_nbytes(Dims{items}, info.item_bytes);
}

SafetensorsEntry entry_of(const std::string& name, const json& value) {
  if (!value.is_object()) throw_corrupt("its entry is not an object");
  SafetensorsEntry entry;
  entry.name = name;
  const json& dtype = require(value, "dtype");
  if (!dtype.is_string()) throw_corrupt("its dtype is not a string");
  const std::string dtype_name = dtype.get<std::string>();
  entry.dtype = dtype_of_safetensors_name(dtype_name).value_or(DType::kUnknown);
  entry.shape = shape_of(require(value, "shape"));

  const json& offsets = require(value, "data_offsets");
  if (!offsets.is_array() || offsets.size() != 2) throw_corrupt("its data_offsets are not two numbers");
  entry.begin = require_uint(offsets[0], "an offset");
  entry.end = require_uint(offsets[1], "an offset");
  const std::string stated = to_string(entry.shape);
  if (entry.dtype == DType::kUnknown) {
    entry.obstacle = fmt::format("a tensor of the unknown dtype '{}'", dtype_name);
    (void)checked_numel(entry.shape);
    if (entry.begin <= entry.end) return entry;
    throw_corrupt(fmt::format("it has bytes {} to {}", entry.begin, entry.end));
  }
  const std::uint64_t needed = pack(entry);
  if (entry.begin > entry.end || entry.end - entry.begin != needed) {
    throw_corrupt(fmt::format("it has bytes {} to {}, shape {} {} needs {}", entry.begin, entry.end, stated,
                              dtype_name, needed));
  }
  return entry;
}

StringMap metadata_of(const json& value) {
  if (!value.is_object() && !value.is_null()) throw_corrupt("__metadata__ is not an object");
  StringMap metadata;
  if (value.is_null()) return metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) throw_corrupt(fmt::format("__metadata__ has '{}', which is not a string", key));
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

void check_tiles(const std::vector<SafetensorsEntry>& entries, std::uint64_t buffer_bytes) {
  std::uint64_t covered = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin != covered) {
      throw_corrupt(fmt::format("tensor '{}' begins at byte {}, the one before it ends at {}", entry.name,
                                entry.begin, covered));
    }
    covered = entry.end;
  }
  const std::string sizes = fmt::format("the tensors take {} bytes, the file has {}", covered, buffer_bytes);
  if (covered > buffer_bytes) throw Error(ErrorKind::kCorrupt, sizes).hint("the file may be truncated");
  if (covered < buffer_bytes) {
    throw Error(ErrorKind::kCorrupt,
                fmt::format("{}; the last {} belong to no tensor", sizes, buffer_bytes - covered))
        .hint("something was appended to the file, or it was written over a longer one");
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> bytes, std::uint64_t buffer_bytes) {
  SafetensorsHeader header;
  header.buffer_offset = kLengthBytes + bytes.size();
  header.buffer_bytes = buffer_bytes;
  const json parsed = header_json(text_of(bytes));
  for (const auto& [name, value] : parsed.items()) {
    check_interrupted();
    if (name == kMetadataKey) {
      header.metadata = metadata_of(value);
      continue;
    }
    with_context("tensor", name,
                 [&, &name = name, &value = value] { header.entries.push_back(entry_of(name, value)); });
  }
  std::sort(header.entries.begin(), header.entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              check_interrupted();
              return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
            });
  check_tiles(header.entries, buffer_bytes);
  return header;
}

namespace {

SafetensorsHeader header_of(const File& file) {
  return with_context("", file.path().string(), [&] {
    const std::uint64_t file_bytes = file.size();
    std::vector<std::byte> length(kLengthBytes);
    if (file_bytes < kLengthBytes)
      throw_corrupt(fmt::format("{} bytes are too few for a safetensors file", file_bytes));
    file.read_at(0, length);
    const std::uint64_t json_bytes = get_uint(length, 0, kLengthBytes);
    if (json_bytes > kSafetensorsHeaderLimit) {
      throw_corrupt(
          fmt::format("a header of {} bytes; at most {} are allowed", json_bytes, kSafetensorsHeaderLimit));
    }
    if (json_bytes > file_bytes - kLengthBytes) {
      throw Error(ErrorKind::kCorrupt,
                  fmt::format("a header of {} bytes in a file of {}", json_bytes, file_bytes))
          .hint("the file may be truncated");
    }
    std::vector<std::byte> bytes(json_bytes);
    file.read_at(kLengthBytes, bytes);
    return parse_safetensors_header(bytes, file_bytes - kLengthBytes - json_bytes);
  });
}

}  // namespace

SafetensorsHeader read_safetensors_header(const File& file) {
  try {
    return header_of(file);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kCorrupt) refuse_foreign_format(file);
    throw;
  }
}

}  // namespace accel::ckpt
