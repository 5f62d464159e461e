#include "ckpt/pickle/reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "base/metadata_limit.hpp"
#include "ckpt/pickle/document.hpp"

namespace accel::ckpt::pickle {
namespace {

// The bytes of _codecs.encode(text, 'latin1').
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

// A value that protocol 2 writes as a call, as it has no opcode for it.
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

// Copies the graph into a tree. The limit on depth also catches a node that contains itself.
class TreeBuilder {
 public:
  TreeBuilder(const Limits& limits, const Graph& graph)
      : limits_(limits), bytes_left_(limits.tree_bytes_at_least) {
    std::size_t input_bytes = graph.bytes.size();
    const bool overflows = __builtin_mul_overflow(input_bytes, limits.tree_bytes_per_byte, &input_bytes) ||
                           __builtin_add_overflow(bytes_left_, input_bytes, &bytes_left_);
    if (overflows) bytes_left_ = SIZE_MAX;
    const std::uint64_t taken = memory_of(graph);
    const std::uint64_t limit = metadata_limit();
    const std::uint64_t left = limit - std::min(limit, taken);
    within_metadata_ = left < bytes_left_;
    bytes_left_ = std::min<std::uint64_t>(bytes_left_, left);
  }

  Value build(NodeRef node, std::size_t depth) {
    enter(depth);
    if (const auto call = node.call()) return build_object(*call, depth);
    if (const Node* container = node.node()) return build_container(node, *container, depth);
    return build_scalar(node);
  }

 private:
  // Counts a value.
  void enter(std::size_t depth) {
    check_interrupted();
    if (depth > limits_.depth) {
      throw Error(ErrorKind::kCorrupt,
                  fmt::format("values nest deeper than {}, or contain themselves", limits_.depth));
    }
    if (++count_ > limits_.values) {
      throw Error(ErrorKind::kCorrupt, fmt::format("more than {} values", limits_.values));
    }
  }

  void spend(std::size_t bytes) {
    if (bytes > bytes_left_) {
      if (within_metadata_)
        throw beyond_metadata_limit("what the pickle builds", metadata_limit() + bytes - bytes_left_);
      throw Error(ErrorKind::kCorrupt,
                  "a small pickle whose values, with shared parts written out, would fill the memory");
    }
    bytes_left_ -= bytes;
  }

  std::string copy(std::string_view text) {
    spend(text.size());
    return std::string(text);
  }

  Value build_scalar(NodeRef node) {
    if (const auto number = node.integer()) return *number;
    if (const auto text = node.text()) return copy(*text);
    if (const auto truth = node.boolean()) return *truth;
    if (const auto number = node.real()) return *number;
    if (const auto bytes = node.bytes()) return Bytes{copy(*bytes)};
    if (const auto digits = node.big_integer()) return BigInt{copy(*digits)};
    if (const auto name = node.global()) return build_global(*name);
    if (node.tuple()) return Tuple{};
    return None{};
  }

  Value build_global(NodeRef::GlobalName name) {
    spend(name.module.size() + name.name.size());
    return Global(name.module, name.name);
  }

  Value build_container(NodeRef node, const Node& container, std::size_t depth) {
    const NodeList parts(node.graph(),
                         std::span(node.graph().children).subspan(container.start, container.count));
    switch (container.kind) {
      case Node::Kind::kTuple:
        return Tuple{build_all(parts, depth)};
      case Node::Kind::kList:
        return List{build_all(parts, depth)};
      case Node::Kind::kSet:
      case Node::Kind::kFrozenSet:
        return Set{build_all(parts, depth), container.kind == Node::Kind::kFrozenSet};
      case Node::Kind::kDict:
        return Dict{build_pairs(*node.dict(), depth)};
      case Node::Kind::kPersistent:
        return Persistent{build_all(parts, depth)};
      default:
        return build_global(*node.global());
    }
  }

  Values build_all(const NodeList& nodes, std::size_t depth) {
    Values values;
    spend(nodes.size() * sizeof(Value));
    values.reserve(nodes.size());
    for (std::size_t i = 0; i < nodes.size(); ++i) values.push_back(build(nodes[i], depth + 1));
    return values;
  }

  Pairs build_pairs(const NodePairs& nodes, std::size_t depth) {
    Pairs pairs;
    spend(nodes.size() * 2 * sizeof(Value));
    pairs.reserve(nodes.size());
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      Value key = build(nodes.key(i), depth + 1);
      pairs.emplace_back(std::move(key), build(nodes.value(i), depth + 1));
    }
    return pairs;
  }

  Values build_states(const NodeCall& call, std::size_t depth) {
    const auto record = call.record();
    if (!record) return build_all(call.states(), depth);
    enter(depth + 1);
    spend(sizeof(Value));
    Values states;
    states.emplace_back(Dict{build_pairs(*record, depth + 1)});
    return states;
  }

  Value build_object(const NodeCall& call, std::size_t depth) {
    spend(sizeof(ObjectParts));
    ObjectParts parts;
    parts.form = call.is_new() ? ObjectParts::Form::kNew : ObjectParts::Form::kReduce;
    parts.callable = build(call.callable(), depth + 1);
    parts.args = build_all(call.args(), depth);
    if (const auto kwargs = call.kwargs().dict()) parts.kwargs = build_pairs(*kwargs, depth);
    parts.states = build_states(call, depth);
    parts.items = build_all(call.items(), depth);
    parts.pairs = build_pairs(call.pairs(), depth);
    if (parts.form == ObjectParts::Form::kReduce) {
      if (std::optional<Value> plain = plain_value_of(parts)) return std::move(*plain);
    }
    return Object(std::move(parts));
  }

  // The tree comes beside the graph.
  static std::uint64_t memory_of(const Graph& graph) {
    return graph.nodes.size() * sizeof(Node) + graph.atoms.size() * sizeof(std::uint64_t) +
           graph.children.size() * sizeof(Ref);
  }

  Limits limits_;
  std::size_t bytes_left_;
  bool within_metadata_ = false;  // metadata_limit() is what limits bytes_left_.
  std::size_t count_ = 0;
};

}  // namespace

Value parse(std::span<const std::byte> bytes, const Limits& limits) {
  const Document document(bytes);
  return tree_of(document.root(), limits);
}

Value tree_of(NodeRef value, const Limits& limits) {
  return TreeBuilder(limits, value.graph()).build(value, 0);
}

}  // namespace accel::ckpt::pickle
