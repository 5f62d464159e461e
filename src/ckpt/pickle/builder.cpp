#include "ckpt/pickle/builder.hpp"

#include <string>

#include "base/error.hpp"
#include "base/metadata_limit.hpp"

namespace accel::ckpt::pickle {
namespace {

// The new size of an array of `count` that must hold `needed` more.
std::size_t more_of(std::size_t count, std::size_t needed, std::size_t limit, const char* what) {
  if (needed > limit - count) throw Error(ErrorKind::kCorrupt, std::string("too many ") + what);
  return std::min(limit, std::max({count + needed, count + count / 2, std::size_t{64}}));
}

}  // namespace

GraphBuilder::GraphBuilder(Graph& graph, const ScanCounts& counts)
    : graph_(graph),
      end_{.nodes = std::min<std::size_t>(counts.nodes, Ref::kIndexLimit),
           .atoms = std::min<std::size_t>(counts.atoms, Ref::kIndexLimit),
           .values = std::min<std::size_t>(counts.values, UINT32_MAX)} {
  check_metadata_bytes(
      "what the pickle builds",
      counts.nodes * sizeof(Node) + counts.atoms * sizeof(std::uint64_t) + counts.values * sizeof(Ref));
  graph.nodes.resize(end_.nodes);
  graph.atoms.resize(end_.atoms);
  graph.children.resize(end_.values);
  point();
}

void GraphBuilder::point() {
  nodes_ = graph_.nodes.data();
  children_ = graph_.children.data();
  atoms_ = graph_.atoms.data();
}

void GraphBuilder::grow_atoms() {
  end_.atoms = more_of(end_.atoms, 1, Ref::kIndexLimit, "literals");
  graph_.atoms.resize(end_.atoms);
  point();
}

void GraphBuilder::grow_nodes() {
  end_.nodes = more_of(end_.nodes, 1, Ref::kIndexLimit, "containers");
  graph_.nodes.resize(end_.nodes);
  point();
}

void GraphBuilder::grow_children(std::size_t count) {
  end_.values = more_of(end_.values, count, UINT32_MAX, "values");
  graph_.children.resize(end_.values);
  point();
}

NodeExtras& GraphBuilder::extras(Ref object) {
  constexpr std::uint64_t kBytes = 256;  // One NodeExtras, with its vectors and the allocator's share.
  const auto [found, is_new] = graph_.extras.try_emplace(object.index());
  if (is_new) check_metadata_bytes("what the pickle builds", graph_.extras.size() * kBytes);
  return found->second;
}

// Most containers are filled once, so the first filling takes no more room than it needs. After that the room
// doubles.
void GraphBuilder::extend(Ref container, std::span<const Ref> parts) {
  Node& node = nodes_[container.index()];
  const std::size_t count = node.count + parts.size();
  if (node.count == 0) {
    node.start = store(parts);
  } else {
    if (count > room_of(container)) make_room(container, node, count);
    std::copy(parts.begin(), parts.end(), children_ + node.start + node.count);
  }
  node.count = static_cast<std::uint32_t>(count);
}

std::uint32_t GraphBuilder::room_of(Ref container) const {
  const Node& node = nodes_[container.index()];
  return node.grown ? rooms_.at(container.index()) : node.count;
}

void GraphBuilder::make_room(Ref container, Node& node, std::size_t count) {
  const std::uint32_t before = room_of(container);
  const std::size_t room = std::max(count, std::size_t{before} * 2);
  const bool is_at_end = std::size_t{node.start} + before == next_.values;
  const std::size_t more = is_at_end ? room - before : room;
  if (more > end_.values - next_.values) grow_children(more);
  if (!is_at_end) {
    std::copy_n(children_ + node.start, node.count, children_ + next_.values);
    node.start = static_cast<std::uint32_t>(next_.values);
  }
  std::fill(children_ + node.start + node.count, children_ + node.start + room, Ref());
  next_.values += more;
  rooms_[container.index()] = static_cast<std::uint32_t>(room);
  node.grown = true;
}

}  // namespace accel::ckpt::pickle
