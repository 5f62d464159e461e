#include "core/machine/value_shape.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "base/text.hpp"
#include "core/machine/value_words.hpp"

namespace accel::machine {
namespace {

// The classes of <cctype> depend on the locale.
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_letter(char c) { return is_lower(c) || is_upper(c); }
bool is_letter_or_digit(char c) { return is_letter(c) || is_digit(c); }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

template <class Predicate>
bool all(std::string_view text, Predicate is) {
  return std::all_of(text.begin(), text.end(), is);
}

/// Whether `is` holds for every part of `text` between any of `separators`, and for at least one.
template <class Predicate>
bool all_parts(std::string_view text, std::string_view separators, Predicate is) {
  bool any = false;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of(separators), text.size());
    if (end > 0 && !is(text.substr(0, end))) return false;
    any |= end > 0;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return any;
}

/// How often upper and lower case follow each other. Random letters change often.
std::size_t case_changes(std::string_view run) {
  std::size_t changes = 0;
  for (std::size_t i = 1; i < run.size(); ++i)
    changes += is_lower(run[i]) != is_lower(run[i - 1]) && is_letter(run[i]) && is_letter(run[i - 1]);
  return changes;
}

/// Whether letters and digits without a separator make a part of an ordinary name: a word, a number, a word
/// with a number behind it, or something short. Tokens and keys are longer.
bool is_part_of_name(std::string_view run) {
  constexpr std::size_t kLongestWord = 14;
  constexpr std::size_t kLongestNumber = 12;
  constexpr std::size_t kLongestTail = 4;
  constexpr std::size_t kLongestMixed = 8;
  if (case_changes(run) > 4) return false;
  if (all(run, is_digit)) return run.size() <= kLongestNumber;
  const auto digits = static_cast<std::size_t>(std::find_if(run.begin(), run.end(), is_digit) - run.begin());
  const std::string_view tail = run.substr(digits);
  if (all(tail, is_digit)) return digits <= kLongestWord && tail.size() <= kLongestTail;
  return run.size() <= kLongestMixed;
}

/// Whether `text` consists of letters, digits and `marks`, and `is_part` holds for what is between the marks.
bool is_name(std::string_view text, std::string_view marks, bool (*is_part)(std::string_view)) {
  const auto is_allowed = [&](char c) {
    return is_letter_or_digit(c) || marks.find(c) != std::string_view::npos;
  };
  return all(text, is_allowed) && all_parts(text, marks, is_part);
}

/// A path may also have a short hash in it.
bool is_part_of_path(std::string_view run) {
  constexpr std::size_t kLongestHash = 12;
  return is_part_of_name(run) ||
         (run.size() <= kLongestHash && all(run, [](char c) { return is_hex(c) && !is_upper(c); }));
}

/// Whether `text` is a number such as "-1", "0.5", "1e-4", "0x1F", "512MB", "64k", "12:00" or "x2".
bool is_number(std::string_view text) {
  constexpr std::size_t kLongest = 15;
  if (text.size() > kLongest) return false;
  if (text.starts_with('-') || text.starts_with('+') || text.starts_with('x')) text.remove_prefix(1);
  if (text.starts_with("0x") || text.starts_with("0X")) return text.size() > 2 && all(text.substr(2), is_hex);
  const std::size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  if (digits == 0 || !is_digit(text.front())) return false;
  std::string_view unit = text.substr(digits);
  if (unit.size() > 1 && (unit[0] == 'e' || unit[0] == 'E')) {
    unit.remove_prefix(unit[1] == '-' || unit[1] == '+' ? 2 : 1);
    return !unit.empty() && all(unit, is_digit);
  }
  static constexpr auto kUnits = std::to_array<std::string_view>(
      {"", "b", "k", "m", "g", "t", "kb", "mb", "gb", "tb", "kib", "mib", "gib", "tib", "s", "ms", "us"});
  return std::find(kUnits.begin(), kUnits.end(), lower_case(unit)) != kUnits.end();
}

bool is_plain(std::string_view value) {
  const auto is_known = [](std::string_view part) { return is_number(part) || is_value_word(part); };
  return is_known(value) || all_parts(value, ",:;=^(){}* |@", [&](std::string_view part) {
           // A range of numbers, such as 0-3.
           const std::size_t hyphen = part.find('-');
           return is_known(part) || (hyphen != 0 && hyphen != std::string_view::npos &&
                                     is_number(part.substr(0, hyphen)) && is_number(part.substr(hyphen + 1)));
         });
}

/// Whether `text` is a UUID, or the beginning of one with a whole first group.
bool is_uuid(std::string_view text) {
  constexpr auto kGroups = std::to_array<std::size_t>({8, 4, 4, 4, 12});
  const std::vector<std::string> groups = split(text, '-');
  if (groups.size() > kGroups.size()) return false;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (groups[i].size() != kGroups[i] || !all(groups[i], is_hex)) return false;
  }
  return !groups.empty();
}

bool is_device(std::string_view part) {
  static constexpr auto kWords = std::to_array<std::string_view>({"all", "none", "void", "NoDevFiles", "-1"});
  if (std::find(kWords.begin(), kWords.end(), part) != kWords.end()) return true;
  for (const std::string_view prefix : {"GPU-", "MIG-"}) {
    if (part.starts_with(prefix)) return is_uuid(part.substr(prefix.size()));
  }
  constexpr std::size_t kLongest = 9;
  return part.size() <= kLongest &&
         all_parts(part, "-:", [](std::string_view n) { return all(n, is_digit); });
}

/// Whether `part` is a name that the kernel, systemd or a driver gives a network device, or its beginning.
bool is_interface(std::string_view part) {
  static constexpr auto kBeginnings = std::to_array<std::string_view>(
      {"mlx5_", "mlx4_", "docker", "virbr", "bnxt_re", "rdmap", "veth", "bond", "team", "eth", "hsn", "efa",
       "cxi", "ib", "en", "wl", "lo", "br-"});
  constexpr std::size_t kLongest = 18;
  if (part.size() > kLongest) return false;
  for (const std::string_view beginning : kBeginnings) {
    if (!part.starts_with(beginning)) continue;
    // The rest is a place: slots and ports as in enp0s31f6, hexadecimal numbers, a VLAN, a port.
    return all(part.substr(beginning.size()), [](char c) {
      return is_hex(c) || std::string_view("opsxnvi.:_P").find(c) != std::string_view::npos;
    });
  }
  return false;
}

/// Whether `text` is an IPv6 address, with or without brackets and a zone.
bool is_ipv6(std::string_view text) {
  return std::count(text.begin(), text.end(), ':') >= 2 && all_parts(text, ":.", [](std::string_view group) {
           return group.size() <= 4 && all(group, is_hex);
         });
}

bool is_host(std::string_view value) {
  constexpr std::size_t kLongest = 253;
  if (value.size() > kLongest) return false;
  if (is_ipv6(value) || value == "::") return true;
  const std::size_t colon = value.rfind(':');
  const std::string_view port = value.substr(std::min(colon, value.size() - 1) + 1);
  if (colon != std::string_view::npos && (port.empty() || port.size() > 5 || !all(port, is_digit)))
    return false;
  std::string_view host = value.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) return is_ipv6(host.substr(1, host.size() - 2));
  return is_name(host, ".-", is_part_of_name);
}

bool is_hosts(std::string_view value) { return is_name(value, ".-,[]", is_part_of_name); }

bool is_path(std::string_view value) {
  constexpr std::size_t kLongest = 4096;
  if (value.size() > kLongest) return false;
  if (value == "/" || value == "." || value == "..") return true;
  if (!value.starts_with('/') && !value.starts_with("./") && !value.starts_with("../")) return false;
  // A key may be a UUID.
  constexpr std::size_t kUuid = 36;
  for (std::size_t i = 0; i + kUuid <= value.size(); ++i) {
    if (is_uuid(value.substr(i, kUuid))) return false;
  }
  // Files of NCCL have %h and %p in their names.
  return is_name(value, "/._-+%", is_part_of_path);
}

bool is_class(std::string_view part) {
  static constexpr auto kEnds = std::to_array<std::string_view>(
      {"Layer", "Layers", "Block", "Blocks", "Attention", "Embedding", "Embeddings", "MLP", "Linear",
       "Decoder", "Encoder", "Module", "Head", "Norm", "Model"});
  constexpr std::size_t kLongest = 60;
  return part.size() <= kLongest && is_upper(part.front()) && all(part, is_letter_or_digit) &&
         std::any_of(kEnds.begin(), kEnds.end(), [&](std::string_view end) { return part.ends_with(end); });
}

bool has_shape(std::string_view value, Shape shape) {
  switch (shape) {
    case Shape::kPlain:
      return is_plain(value);
    case Shape::kDevices:
      return all_parts(value, ",", is_device);
    case Shape::kInterfaces:
      return all_parts(value, ",^= ", is_interface);
    case Shape::kHost:
      return is_host(value);
    case Shape::kHosts:
      return is_hosts(value);
    case Shape::kPath:
      return is_path(value);
    case Shape::kClasses:
      return all_parts(value, ", ", is_class);
    case Shape::kPaths:
      break;
  }
  return false;
}

}  // namespace

std::string shown(std::string_view value, Shape shape) {
  if (value.empty()) return "";
  if (shape != Shape::kPaths) return std::string(has_shape(value, shape) ? value : kNotShown);
  std::vector<std::string> paths = split(value, ':');
  for (std::string& path : paths) path = shown(path, Shape::kPath);
  return fmt::format("{}", fmt::join(paths, ":"));
}

}  // namespace accel::machine
