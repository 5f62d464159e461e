#include "base/files/json_text.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/files/file.hpp"
#include "base/metadata_limit.hpp"
#include "base/text.hpp"

namespace accel {
namespace {

using nlohmann::json;

// What the parser's values take at most, with the allocator's share: a value in an array that grows, an entry
// of an object, and an array or object by itself.
constexpr std::uint64_t kItemBytes = 48;
constexpr std::uint64_t kEntryBytes = 96;
constexpr std::uint64_t kContainerBytes = 96;
// Values are copied and written by recursion.
constexpr int kDeepest = 1000;

// The reason why `text` is not JSON although the parser would accept it, or nothing. The parser skips a byte
// order mark, and it takes a NUL for the end of the text.
std::optional<std::string> why_not_json(std::string_view text) {
  if (text.starts_with("\xef\xbb\xbf")) return "the JSON begins with a byte order mark";
  const std::size_t nul = text.find('\0');
  if (nul != std::string_view::npos) return fmt::format("byte {} of the JSON is a NUL", nul);
  return std::nullopt;
}

json parse(std::string_view text, bool throws) {
  check_json_bytes(text);
  if (std::optional<std::string> why = why_not_json(text)) {
    if (throws) throw_corrupt(*std::move(why));
    return json(json::value_t::discarded);
  }
  return json::parse(InterruptibleText(text.data()), InterruptibleText(text.data() + text.size()), nullptr,
                     throws);
}

}  // namespace

void check_json_bytes(std::string_view text) {
  std::uint64_t items = 0;
  std::uint64_t entries = 0;
  std::uint64_t containers = 0;
  int depth = 0;
  bool in_string = false;
  for (InterruptibleText at(text.data()), end(text.data() + text.size()); at != end; ++at) {
    const char c = *at;
    if (c == '"') {
      in_string = !in_string;
    } else if (in_string) {
      if (c == '\\' && &*at + 1 != text.data() + text.size()) ++at;
    } else {
      items += c == ',' ? 1 : 0;
      entries += c == ':' ? 1 : 0;
      if (c == ']' || c == '}') --depth;
      if (c != '[' && c != '{') continue;
      ++containers;
      if (++depth > kDeepest)
        throw Error(ErrorKind::kCorrupt, fmt::format("the JSON nests more than {} deep", kDeepest));
    }
  }
  // The text, and its strings.
  check_metadata_bytes("the JSON document", 2 * text.size() + items * kItemBytes + entries * kEntryBytes +
                                                containers * kContainerBytes);
}

json parse_json(std::string_view text) { return parse(text, true); }

json parse_json_or_discard(std::string_view text) { return parse(text, false); }

json read_json_file(const std::filesystem::path& path) {
  const std::uint64_t bytes = File::open_read(path).size();
  check_metadata_bytes("the file", bytes);
  return parse_json_or_discard(read_text_file(path, bytes));
}

void use_json_file(const std::filesystem::path& path, std::uint64_t limit_bytes,
                   const std::function<void(const nlohmann::json&)>& use) {
  const std::string text = read_text_file(path, limit_bytes);
  try {
    use(parse_json(text));
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorKind::kCorrupt,
                fmt::format("'{}' cannot be read: {}", path.string(), without_json_tag(error.what())));
  } catch (Error& error) {
    error.add_context(fmt::format("'{}'", path.string()));
    throw;
  }
}

}  // namespace accel
