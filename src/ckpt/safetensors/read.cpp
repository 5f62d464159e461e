#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/files/json_text.hpp"
#include "base/interrupt.hpp"
#include "base/text.hpp"
#include "ckpt/io/endian.hpp"
#include "ckpt/safetensors/header.hpp"

namespace accel::ckpt {
namespace {

using nlohmann::json;

constexpr std::string_view kMetadataKey = "__metadata__";
constexpr std::uint64_t kLengthBytes = 8;

// Rejects a name that comes twice: JSON parsers keep one of the two, and differ in which. This is a pass of
// its own, as a callback of the parser would search all earlier entries at every entry.
class NameChecker final : public nlohmann::json_sax<json> {
 public:
  bool key(string_t& name) override {
    if (depth_ == 1 && !names_.insert(name).second)
      throw_corrupt(fmt::format("'{}' comes twice in the header", name));
    return true;
  }
  bool start_object(std::size_t) override { return ++depth_ > 0; }
  bool end_object() override { return --depth_ >= 0; }
  bool start_array(std::size_t) override { return ++depth_ > 0; }
  bool end_array() override { return --depth_ >= 0; }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  // The parse that follows reports the error.
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override {
    return false;
  }

 private:
  int depth_ = 0;
  std::set<std::string> names_;
};

json header_json(std::string_view text) {
  if (!text.starts_with('{')) throw_corrupt("the header does not begin with '{'");
  NameChecker checker;
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

SafetensorsEntry entry_of(const std::string& name, const json& value) {
  if (!value.is_object()) throw_corrupt("its entry is not an object");
  SafetensorsEntry entry;
  entry.name = name;
  const json& dtype = require(value, "dtype");
  if (!dtype.is_string()) throw_corrupt("its dtype is not a string");
  const auto known = dtype_of_safetensors_name(dtype.get<std::string>());
  if (!known) throw_corrupt(fmt::format("its dtype '{}' is unknown", dtype.get<std::string>()));
  entry.dtype = *known;

  const json& shape = require(value, "shape");
  if (!shape.is_array()) throw_corrupt("its shape is not an array");
  for (const json& dim : shape) {
    const std::uint64_t size = require_uint(dim, "a dimension");
    if (!std::in_range<std::int64_t>(size)) throw_corrupt(fmt::format("a dimension of {}", size));
    entry.shape.push_back(static_cast<std::int64_t>(size));
  }

  const json& offsets = require(value, "data_offsets");
  if (!offsets.is_array() || offsets.size() != 2) throw_corrupt("its data_offsets are not two numbers");
  entry.begin = require_uint(offsets[0], "an offset");
  entry.end = require_uint(offsets[1], "an offset");
  const std::uint64_t needed = checked_nbytes(entry.shape, item_bytes(entry.dtype));
  if (entry.begin > entry.end || entry.end - entry.begin != needed) {
    throw_corrupt(fmt::format("it has bytes {} to {}, shape {} {} needs {}", entry.begin, entry.end,
                              to_string(entry.shape), dtype.get<std::string>(), needed));
  }
  return entry;
}

StringMap metadata_of(const json& value) {
  if (!value.is_object()) throw_corrupt("__metadata__ is not an object");
  StringMap metadata;
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
  if (covered != buffer_bytes) {
    throw Error(ErrorKind::kCorrupt,
                fmt::format("the tensors take {} bytes, the file has {}", covered, buffer_bytes))
        .hint("the file may be truncated");
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> bytes, std::uint64_t buffer_bytes) {
  SafetensorsHeader header;
  header.buffer_offset = kLengthBytes + bytes.size();
  header.buffer_bytes = buffer_bytes;
  const json parsed = header_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  for (const auto& [name, value] : parsed.items()) {
    check_interrupted();
    if (name == kMetadataKey) {
      header.metadata = metadata_of(value);
      continue;
    }
    try {
      header.entries.push_back(entry_of(name, value));
    } catch (Error& e) {
      e.add_context(fmt::format("tensor '{}'", name));
      throw;
    }
  }
  std::sort(header.entries.begin(), header.entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              check_interrupted();
              return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
            });
  check_tiles(header.entries, buffer_bytes);
  return header;
}

SafetensorsHeader read_safetensors_header(const File& file) {
  try {
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
  } catch (Error& e) {
    e.add_context(fmt::format("'{}'", file.path().string()));
    throw;
  }
}

}  // namespace accel::ckpt
