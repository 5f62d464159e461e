#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "ckpt/pickle/graph.hpp"
#include "ckpt/pickle/scan.hpp"

namespace accel::ckpt::pickle {

/// Fills the arrays of a graph.
class GraphBuilder {
 public:
  /// Makes the arrays of `graph` long enough for `counts`, or for as much as references can refer to; they
  /// grow if that is not enough. Throws Error (kCorrupt) if `counts` need more than metadata_limit().
  GraphBuilder(Graph& graph, const ScanCounts& counts);

  [[nodiscard, gnu::always_inline]] Ref add_atom(std::size_t position) {
    if (next_.atoms == end_.atoms) [[unlikely]]
      grow_atoms();
    atoms_[next_.atoms] = position;
    return Ref::atom(static_cast<std::uint32_t>(next_.atoms++));
  }

  /// A node that was released is used again.
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
  /// Sets Node::held: further references to `ref` exist.
  void hold(Ref ref) {
    if (Node* node = node_of(ref)) node->held = true;
  }
  /// Frees a node that was just taken off the stack and whose parts belong to another node now. A held node
  /// stays.
  void release(Ref node) {
    if (!nodes_[node.index()].held) unused_.push_back(node.index());
  }
  /// Adds parts to a container or instance.
  void extend(Ref container, std::span<const Ref> parts);
  NodeExtras& extras(Ref object);

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
  Node* nodes_ = nullptr;  // The array of the graph's nodes.
  Ref* children_ = nullptr;
  std::uint64_t* atoms_ = nullptr;
  ScanCounts next_;  // How much of the arrays is used.
  ScanCounts end_;   // How long the arrays are.
  std::vector<std::uint32_t> unused_;
  std::unordered_map<std::uint32_t, std::uint32_t> rooms_;  // Maps a grown node to its room, in parts.
};

}  // namespace accel::ckpt::pickle
