#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ckpt/pickle/graph.hpp"
#include "ckpt/pickle/scan.hpp"

namespace accel::ckpt::pickle {

/// Fills a part of each of a graph's arrays. Two may fill two parts of one graph at the same time, each on a
/// thread of its own.
class GraphBuilder {
 public:
  /// There is no more room in the part that is this builder's.
  struct Full {};

  /// Makes the arrays of `graph` long enough for that, or for as much as references can refer to. Throws
  /// Error (kCorrupt) if that is more than metadata_limit().
  static void reserve(Graph& graph, const ScanCounts& counts);

  /// The part from `begin` on that `counts` says; the arrays must have been reserved for it. One that is
  /// alone can make them longer, another one that has no room throws Full.
  GraphBuilder(Graph& graph, const ScanCounts& begin, const ScanCounts& counts, bool alone);

  [[nodiscard, gnu::always_inline]] Ref add_atom(std::size_t position) {
    if (next_.atoms == end_.atoms) [[unlikely]]
      grow_atoms();
    atoms_[next_.atoms] = position;
    return Ref::atom(static_cast<std::uint32_t>(next_.atoms++));
  }

  /// Nodes are used again as soon as nothing can refer to them any more.
  [[nodiscard, gnu::always_inline]] Ref add_node(const Node& node) {
    if (!unused_.empty()) {
      const std::uint32_t index = unused_.back();
      unused_.pop_back();
      nodes_[index] = node;
      return Ref::node(index);
    }
    if (next_.nodes == end_.nodes) [[unlikely]]
      grow_nodes();
    nodes_[next_.nodes] = node;
    return Ref::node(static_cast<std::uint32_t>(next_.nodes++));
  }
  [[nodiscard, gnu::always_inline]] Ref add_node(Node::Kind kind, std::span<const Ref> parts) {
    const auto count = static_cast<std::uint32_t>(parts.size());
    return add_node(Node{.start = store(parts), .count = count, .kind = kind});
  }

  [[nodiscard]] Node* node_of(Ref ref) const {
    return ref.tag() == Ref::Tag::kNode ? nodes_ + ref.index() : nullptr;
  }
  void hold(Ref ref) {
    if (Node* node = node_of(ref)) node->held = true;
  }
  /// For a node that was just taken off the stack and whose parts have found another place.
  void release(Ref node) {
    if (!nodes_[node.index()].held) unused_.push_back(node.index());
  }
  /// Adds parts to a container or instance.
  void extend(Ref container, std::span<const Ref> parts);
  NodeExtras& extras(Ref object);

  /// Goes on alone where `next`, whose part follows this one's, has ended.
  void go_on_after(GraphBuilder& next);
  /// Calls `resolve` on every reference from the part of `begin` on.
  template <class Resolve>
  void resolve_from(const GraphBuilder& begin, Resolve resolve);
  /// Gives the graph what is not in its arrays.
  void finish(Graph& graph) { graph.extras = std::move(extras_); }

 private:
  [[gnu::always_inline]] std::uint32_t store(std::span<const Ref> values) {
    if (values.size() > end_.values - next_.values) [[unlikely]]
      grow_children(values.size());
    const auto start = static_cast<std::uint32_t>(next_.values);
    for (const Ref value : values) children_[next_.values++] = value;
    return start;
  }

  [[nodiscard]] std::uint32_t room_of(Ref container) const;
  void make_room(Ref container, Node& node, std::size_t count);
  void grow_atoms();
  void grow_nodes();
  void grow_children(std::size_t count);
  void point();

  Graph& graph_;
  Node* nodes_ = nullptr;  // Of the graph's arrays, whole.
  Ref* children_ = nullptr;
  std::uint64_t* atoms_ = nullptr;
  ScanCounts begin_;
  ScanCounts next_;
  ScanCounts end_;
  bool alone_;
  std::vector<std::uint32_t> unused_;
  std::unordered_map<std::uint32_t, std::uint32_t> rooms_;  // By node: parts for which a grown one has room.
  std::unordered_map<std::uint32_t, NodeExtras> extras_;    // By node.
};

template <class Resolve>
void GraphBuilder::resolve_from(const GraphBuilder& begin, Resolve resolve) {
  for (std::size_t i = begin.begin_.values; i < next_.values; ++i) resolve(children_[i]);
  for (std::size_t i = begin.begin_.nodes; i < next_.nodes; ++i) resolve(nodes_[i].callable);
  for (auto& [node, extras] : extras_) {
    resolve(extras.kwargs);
    for (std::vector<Ref>* refs : {&extras.states, &extras.items, &extras.pairs}) {
      for (Ref& ref : *refs) resolve(ref);
    }
  }
}

}  // namespace accel::ckpt::pickle
