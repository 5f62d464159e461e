#include "ckpt/pickle/builder.hpp"

#include <string>

#include "base/error.hpp"
#include "base/metadata_limit.hpp"

namespace accel::ckpt::pickle {
namespace {

// Some more than there are, of those that have no room.
std::size_t more_of(std::size_t count, std::size_t needed, std::size_t limit, const char* what) {
  if (needed > limit - count) throw Error(ErrorKind::kCorrupt, std::string("too many ") + what);
  return std::min(limit, std::max({count + needed, count + count / 2, std::size_t{64}}));
}

// A reference has no room for more. A part that begins behind that has none.
ScanCounts within_limits(const ScanCounts& counts) {
  return {std::min<std::size_t>(counts.nodes, Ref::kIndexLimit),
          std::min<std::size_t>(counts.atoms, Ref::kIndexLimit),
          std::min<std::size_t>(counts.values, UINT32_MAX)};
}

}  // namespace

void GraphBuilder::reserve(Graph& graph, const ScanCounts& counts) {
  check_metadata_bytes(
      "what the pickle builds",
      counts.nodes * sizeof(Node) + counts.atoms * sizeof(std::uint64_t) + counts.values * sizeof(Ref));
  const ScanCounts most = within_limits(counts);
  graph.nodes.resize(most.nodes);
  graph.atoms.resize(most.atoms);
  graph.children.resize(most.values);
}

GraphBuilder::GraphBuilder(Graph& graph, const ScanCounts& begin, const ScanCounts& counts, bool alone)
    : graph_(graph),
      begin_(within_limits(begin)),
      next_(begin_),
      end_(within_limits(begin + counts)),
      alone_(alone) {
  point();
}

void GraphBuilder::point() {
  nodes_ = graph_.nodes.data();
  children_ = graph_.children.data();
  atoms_ = graph_.atoms.data();
}

void GraphBuilder::grow_atoms() {
  if (!alone_) throw Full();
  end_.atoms = more_of(end_.atoms, 1, Ref::kIndexLimit, "literals");
  graph_.atoms.resize(std::max(graph_.atoms.size(), end_.atoms));
  point();
}

void GraphBuilder::grow_nodes() {
  if (!alone_) throw Full();
  end_.nodes = more_of(end_.nodes, 1, Ref::kIndexLimit, "containers");
  graph_.nodes.resize(std::max(graph_.nodes.size(), end_.nodes));
  point();
}

void GraphBuilder::grow_children(std::size_t count) {
  if (!alone_) throw Full();
  end_.values = more_of(end_.values, count, UINT32_MAX, "values");
  graph_.children.resize(std::max(graph_.children.size(), end_.values));
  point();
}

NodeExtras& GraphBuilder::extras(Ref object) {
  constexpr std::uint64_t kBytes = 256;  // Of one, with its vectors and the allocator's share.
  const auto [found, is_new] = extras_.try_emplace(object.index());
  if (is_new) check_metadata_bytes("what the pickle builds", extras_.size() * kBytes);
  return found->second;
}

void GraphBuilder::go_on_after(GraphBuilder& next) {
  next_ = next.next_;
  end_ = next.end_;
  alone_ = true;
  unused_.insert(unused_.end(), next.unused_.begin(), next.unused_.end());
  rooms_.merge(next.rooms_);
  extras_.merge(next.extras_);
}

// The first filling takes what it needs, as most containers are filled once; after that they double.
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
