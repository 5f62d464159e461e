#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/config/value.hpp"

namespace accel::core {

/// A YAML node with its place in the file; nothing in it is interpreted yet.
struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMap };

  struct Entry;

  Kind kind = Kind::kNull;
  Origin origin;
  std::string text;             ///< A scalar's text.
  bool quoted = false;          ///< A quoted scalar is never a number.
  std::vector<YamlNode> items;  ///< Of a sequence.
  std::vector<Entry> entries;   ///< Of a map, in the file's order, duplicates included.
};

struct YamlNode::Entry {
  std::string key;
  Origin origin;  ///< The key's.
  YamlNode value;
};

/// Parses one YAML document (JSON is YAML). Broken syntax, a key that is not a scalar, several documents and
/// absurd nesting are Errors of kind kUsage with line and column. `source` gives every origin its layer and
/// source.
YamlNode parse_yaml(std::string_view text, const Origin& source);

}  // namespace accel::core
