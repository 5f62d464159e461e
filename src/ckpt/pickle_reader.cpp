#include "ckpt/pickle_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.hpp"
#include "ckpt/pickle_machine.hpp"

namespace accel::ckpt::pickle {
namespace {

// The text of _codecs.encode(text, 'latin1') as the bytes it stands for.
std::optional<std::string> latin1_bytes(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      bytes += text[i];
      continue;
    }
    if ((lead != 0xc2 && lead != 0xc3) || i + 1 == text.size()) return std::nullopt;
    const auto trail = static_cast<unsigned char>(text[++i]);
    bytes += static_cast<char>((lead & 0x03U) << 6 | (trail & 0x3fU));
  }
  return bytes;
}

// What protocol 2 has no opcode for, and therefore spells as a call.
std::optional<Value> plain_value_of(const ObjectParts& parts) {
  const auto* callable = parts.callable.get<Global>();
  if (callable == nullptr || !parts.states.empty() || !parts.pairs.empty() || !parts.items.empty())
    return std::nullopt;
  const bool builtin = callable->module() == "__builtin__" || callable->module() == "builtins";
  if (callable->qualified() == "_codecs.encode" && parts.args.size() == 2) {
    const auto* text = parts.args[0].get<std::string>();
    const auto* codec = parts.args[1].get<std::string>();
    if (text == nullptr || codec == nullptr || *codec != "latin1") return std::nullopt;
    std::optional<std::string> bytes = latin1_bytes(*text);
    if (bytes) return Bytes{std::move(*bytes)};
  } else if (builtin && callable->name() == "bytes" && parts.args.empty()) {
    return Bytes{};
  } else if (builtin && (callable->name() == "set" || callable->name() == "frozenset") &&
             parts.args.size() == 1) {
    const auto* list = parts.args[0].get<List>();
    if (list != nullptr) return Set{list->items, callable->name() == "frozenset"};
  }
  return std::nullopt;
}

// Copies the graph into a tree. A node that contains itself would be infinitely deep, so the limit on depth
// finds it.
class TreeBuilder {
 public:
  explicit TreeBuilder(const Limits& limits) : limits_(limits) {}

  Value build(const Node* node, std::size_t depth) {
    if (depth > limits_.depth) {
      throw Error(ErrorKind::kCorrupt,
                  fmt::format("values nest deeper than {}, or contain themselves", limits_.depth));
    }
    if (++count_ > limits_.values) {
      throw Error(ErrorKind::kCorrupt, fmt::format("more than {} values", limits_.values));
    }
    switch (node->kind) {
      case Node::Kind::kLeaf:
        return node->leaf;
      case Node::Kind::kTuple:
        return Tuple{build_all(node->args, depth)};
      case Node::Kind::kList:
        return List{build_all(node->items, depth)};
      case Node::Kind::kSet:
        return Set{build_all(node->items, depth), false};
      case Node::Kind::kFrozenSet:
        return Set{build_all(node->items, depth), true};
      case Node::Kind::kDict:
        return Dict{build_pairs(node->items, depth)};
      case Node::Kind::kPersistent:
        return Persistent{build_all(node->args, depth)};
      case Node::Kind::kReduced:
      case Node::Kind::kNewObject:
        return build_object(*node, depth);
    }
    return {};
  }

 private:
  Values build_all(std::span<Node* const> nodes, std::size_t depth) {
    Values values;
    values.reserve(nodes.size());
    for (const Node* node : nodes) values.push_back(build(node, depth + 1));
    return values;
  }

  Pairs build_pairs(std::span<Node* const> nodes, std::size_t depth) {
    Pairs pairs;
    pairs.reserve(nodes.size() / 2);
    for (std::size_t i = 0; i + 1 < nodes.size(); i += 2) {
      Value key = build(nodes[i], depth + 1);
      pairs.emplace_back(std::move(key), build(nodes[i + 1], depth + 1));
    }
    return pairs;
  }

  Value build_object(const Node& node, std::size_t depth) {
    ObjectParts parts;
    parts.form = node.kind == Node::Kind::kReduced ? ObjectParts::Form::kReduce : ObjectParts::Form::kNew;
    parts.callable = build(node.args.front(), depth + 1);
    parts.args = build_all(std::span(node.args).subspan(1), depth);
    parts.kwargs = build_pairs(node.kwargs, depth);
    parts.states = build_all(node.states, depth);
    parts.items = build_all(node.items, depth);
    parts.pairs = build_pairs(node.pairs, depth);
    if (parts.form == ObjectParts::Form::kReduce) {
      if (std::optional<Value> plain = plain_value_of(parts)) return std::move(*plain);
    }
    return Object(std::move(parts));
  }

  Limits limits_;
  std::size_t count_ = 0;
};

}  // namespace

Value parse(std::span<const std::byte> bytes, const Limits& limits) {
  Machine machine(bytes, limits);
  return TreeBuilder(limits).build(machine.run(), 0);
}

}  // namespace accel::ckpt::pickle
