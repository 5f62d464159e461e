#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ckpt/pickle/graph.hpp"

namespace accel::ckpt::pickle {

class NodeList;
class NodePairs;
class NodeCall;

/// A value of a graph. It is as cheap to copy as a pointer, and valid as long as the graph and its input
/// exist.
class NodeRef {
 public:
  NodeRef(const Graph& graph, Ref ref) : graph_(&graph), ref_(ref) {}

  /// Equal ids are the same value. Different ids may be equal values.
  [[nodiscard]] Ref id() const { return ref_; }
  [[nodiscard]] bool is_none() const { return ref_ == Ref(); }
  [[nodiscard]] std::optional<bool> boolean() const;
  /// The value of an integer that fits 64 bits.
  [[nodiscard]] std::optional<std::int64_t> integer() const {
    if (ref_.tag() == Ref::Tag::kSmall) return ref_.small_value();
    return large_integer();
  }
  /// The bytes of an integer that needs more: two's complement, little-endian.
  [[nodiscard]] std::optional<std::string_view> big_integer() const;
  [[nodiscard]] std::optional<double> real() const;
  [[nodiscard]] std::optional<std::string_view> text() const;
  [[nodiscard]] std::optional<std::string_view> bytes() const;

  struct GlobalName {
    std::string_view module;
    std::string_view name;
  };
  [[nodiscard]] std::optional<GlobalName> global() const;

  /// The items of a tuple, and those of a tuple or a list.
  [[nodiscard]] std::optional<NodeList> tuple() const;
  [[nodiscard]] std::optional<NodeList> sequence() const;
  /// The entries of a dict, and those of a dict or an OrderedDict.
  [[nodiscard]] std::optional<NodePairs> dict() const;
  [[nodiscard]] std::optional<NodePairs> mapping() const;
  /// The call that the pickle asks for, to build an object.
  [[nodiscard]] std::optional<NodeCall> call() const;

  /// The node of a container or call, else nullptr.
  [[nodiscard]] const Node* node() const {
    return ref_.tag() == Ref::Tag::kNode ? &graph_->nodes[ref_.index()] : nullptr;
  }
  [[nodiscard]] const Graph& graph() const { return *graph_; }

 private:
  [[nodiscard]] std::optional<std::int64_t> large_integer() const;

  const Graph* graph_;
  Ref ref_;
};

class NodeList {
 public:
  NodeList(const Graph& graph, std::span<const Ref> refs) : graph_(&graph), refs_(refs) {}

  [[nodiscard]] std::size_t size() const { return refs_.size(); }
  [[nodiscard]] bool empty() const { return refs_.empty(); }
  [[nodiscard]] NodeRef operator[](std::size_t i) const { return {*graph_, refs_[i]}; }
  [[nodiscard]] std::span<const Ref> ids() const { return refs_; }

 private:
  const Graph* graph_;
  std::span<const Ref> refs_;
};

/// Keys and values in the order of the pickle. A key may come twice; the last one counts.
class NodePairs {
 public:
  NodePairs(const Graph& graph, std::span<const Ref> refs) : refs_(graph, refs) {}

  [[nodiscard]] std::size_t size() const { return refs_.size() / 2; }
  [[nodiscard]] NodeRef key(std::size_t i) const { return refs_[2 * i]; }
  [[nodiscard]] NodeRef value(std::size_t i) const { return refs_[2 * i + 1]; }

 private:
  NodeList refs_;
};

/// A call and its parts, as in pickle::ObjectParts.
class NodeCall {
 public:
  NodeCall(const Graph& graph, Ref ref) : graph_(&graph), ref_(ref), node_(&graph.nodes[ref.index()]) {}

  [[nodiscard]] bool is_new() const { return node_->kind != Node::Kind::kReduced; }
  [[nodiscard]] NodeRef callable() const { return {*graph_, node_->callable}; }
  [[nodiscard]] NodeList args() const;
  [[nodiscard]] NodeRef kwargs() const { return {*graph_, extras().kwargs}; }  ///< Returns a dict, or None.
  [[nodiscard]] NodeList states() const;
  /// The entries of the state if it is a single dict that nothing else refers to. Then states() is empty.
  [[nodiscard]] std::optional<NodePairs> record() const;
  [[nodiscard]] NodeList items() const { return {*graph_, extras().items}; }
  [[nodiscard]] NodePairs pairs() const { return {*graph_, extras().pairs}; }

 private:
  [[nodiscard]] const NodeExtras& extras() const;

  const Graph* graph_;
  Ref ref_;
  const Node* node_;
};

// Functions that are called for every value.

inline std::optional<NodeList> NodeRef::tuple() const {
  if (ref_ == Ref::empty_tuple()) return NodeList(*graph_, {});
  const Node* found = node();
  if (found == nullptr || found->kind != Node::Kind::kTuple) return std::nullopt;
  return NodeList(*graph_, parts_of(*graph_, *found));
}

inline std::optional<NodeList> NodeRef::sequence() const {
  const Node* found = node();
  if (found == nullptr || found->kind != Node::Kind::kList) return tuple();
  return NodeList(*graph_, parts_of(*graph_, *found));
}

inline std::optional<NodeCall> NodeRef::call() const {
  const Node* found = node();
  if (found == nullptr) return std::nullopt;
  switch (found->kind) {
    case Node::Kind::kReduced:
    case Node::Kind::kNewObject:
    case Node::Kind::kInstance:
    case Node::Kind::kRecord:
      return NodeCall(*graph_, ref_);
    default:
      return std::nullopt;
  }
}

inline NodeList NodeCall::args() const {
  if (node_->kind == Node::Kind::kInstance || node_->kind == Node::Kind::kRecord) return {*graph_, {}};
  return {*graph_, parts_of(*graph_, *node_)};
}

inline std::optional<NodePairs> NodeCall::record() const {
  if (node_->kind != Node::Kind::kRecord) return std::nullopt;
  return NodePairs(*graph_, parts_of(*graph_, *node_));
}

/// The value of a two's complement little-endian integer, or nothing if it has more than 8 bytes.
[[nodiscard]] std::optional<std::int64_t> integer_of_digits(std::string_view digits);

/// The text that describe() gives for the same Value.
[[nodiscard]] std::string describe(NodeRef value);

}  // namespace accel::ckpt::pickle
