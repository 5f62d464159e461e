#include "base/visible.hpp"

#include <fmt/format.h>

namespace accel {
namespace {

std::uint32_t byte_at(std::string_view text, std::size_t at) { return static_cast<unsigned char>(text[at]); }

/// The character at the start of `text`, which is not empty. A surrogate is not one.
Utf8Character first_of(std::string_view text) {
  const Utf8Character character = utf8_character(text);
  const bool is_surrogate = character.code >= 0xd800 && character.code <= 0xdfff;
  return is_surrogate ? Utf8Character{} : character;
}

bool is_control(std::uint32_t code) { return code < 0x20 || (code >= 0x7f && code <= 0x9f); }

/// Whether the character, which is not a control, changes where others appear on the screen.
bool moves_others(std::uint32_t code) {
  return code == 0x61c || code == 0x200e || code == 0x200f || (code >= 0x2028 && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069);
}

std::string escape_of(std::uint32_t code) {
  switch (code) {
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      return code < 0x80 ? fmt::format("\\x{:02x}", code) : fmt::format("\\u{:04x}", code);
  }
}

/// Rewrites `text`: `on_character(result, code, bytes)` appends the replacement of a character, and
/// `on_byte(byte)` returns that of a byte that is not UTF-8.
template <class OnCharacter, class OnByte>
std::string rewritten(std::string_view text, OnCharacter on_character, OnByte on_byte) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const Utf8Character character = first_of(text);
    const std::string_view bytes = text.substr(0, character.bytes);
    if (character.bytes == 0) {
      result += on_byte(byte_at(text, 0));
      text.remove_prefix(1);
      continue;
    }
    on_character(result, character.code, bytes);
    text.remove_prefix(character.bytes);
  }
  return result;
}

std::string hex_of(std::uint32_t byte) { return fmt::format("\\x{:02x}", byte); }

std::string shown(std::string_view text, bool keeps_newlines) {
  return rewritten(
      text,
      [&](std::string& result, std::uint32_t code, std::string_view bytes) {
        const bool plain = !is_control(code) && !moves_others(code);
        if (plain || (code == '\n' && keeps_newlines)) {
          result += bytes;
        } else {
          result += escape_of(code);
        }
      },
      hex_of);
}

bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }

/// Whether `text` has something that as_utf8() could have written for a byte.
bool has_hex_escape(std::string_view text) {
  for (std::size_t at = text.find("\\x"); at != std::string_view::npos; at = text.find("\\x", at + 1)) {
    if (at + 3 < text.size() && is_hex(text[at + 2]) && is_hex(text[at + 3])) return true;
  }
  return false;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t bytes = first_of(text).bytes;
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

}  // namespace

Utf8Character utf8_character(std::string_view text) {
  const std::uint32_t lead = byte_at(text, 0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {};
  std::uint32_t code = lead & (0x7fU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    const std::uint32_t next = byte_at(text, i);
    if ((next & 0xc0U) != 0x80) return {};
    code = code << 6 | (next & 0x3fU);
  }
  const bool too_long = (bytes == 3 && code < 0x800) || (bytes == 4 && code < 0x10000);
  return too_long || code > 0x10ffff ? Utf8Character{} : Utf8Character{code, bytes};
}

std::string visible(std::string_view text) { return shown(text, false); }

std::string visible_lines(std::string_view text) { return shown(text, true); }

std::string visible_json(std::string_view document) {
  return rewritten(
      document,
      [](std::string& result, std::uint32_t code, std::string_view bytes) {
        if ((is_control(code) && code >= 0x7f) || moves_others(code)) {
          result += fmt::format("\\u{:04x}", code);
        } else {
          result += bytes;
        }
      },
      hex_of);
}

std::string as_utf8(std::string_view text) {
  if (is_utf8(text) && !has_hex_escape(text)) return std::string(text);
  return rewritten(
      text,
      [](std::string& result, std::uint32_t code, std::string_view bytes) {
        result += bytes;
        if (code == '\\') result += bytes;
      },
      hex_of);
}

}  // namespace accel
