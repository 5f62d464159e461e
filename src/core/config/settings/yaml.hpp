#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/config/value.hpp"

namespace accel::config {

/// A YAML node with its place in the file. Its text is not interpreted.
struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMap };

  struct Entry;

  Kind kind = Kind::kNull;
  Origin origin;
  std::string text;             ///< A scalar's text.
  bool quoted = false;          ///< A quoted scalar is never a number.
  std::vector<YamlNode> items;  ///< The items of a sequence.
  std::vector<Entry> entries;   ///< The entries of a map, in the order of the file, duplicates included.
};

struct YamlNode::Entry {
  std::string key;
  Origin origin;  ///< Where the key stands.
  YamlNode value;
};

/// Parses one YAML document (JSON is YAML). Broken syntax, a key that is not a scalar, a second document and
/// more than 32 levels or 100,000 nodes are Errors of kind kUsage with line and column. `source` gives every
/// origin its layer and source.
YamlNode parse_yaml(std::string_view text, const Origin& source);

}  // namespace accel::config
