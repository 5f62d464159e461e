#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/host/large_memory.hpp"

namespace accel::ckpt::pickle {

/// A value in 32 bits: a constant, a small integer, or an index of an atom or a node. Equal references are
/// the same value. Different references may be equal values.
class Ref {
 public:
  enum class Tag : std::uint32_t {
    kConstant,
    kSmall,  ///< An integer of 30 bits.
    kAtom,   ///< An index in Graph::atoms.
    kNode,   ///< An index in Graph::nodes.
  };
  static constexpr std::uint32_t kIndexLimit = std::uint32_t{1} << 30;

  /// A Ref is None if it is initialized as `Ref()` or `Ref x{}`. Arrays of millions are left uninitialized.
  constexpr Ref() = default;
  static constexpr Ref boolean(bool value) { return Ref(Tag::kConstant, value ? 2 : 1); }
  static constexpr Ref empty_tuple() { return Ref(Tag::kConstant, 3); }
  static constexpr Ref atom(std::uint32_t index) { return Ref(Tag::kAtom, index); }
  static constexpr Ref node(std::uint32_t index) { return Ref(Tag::kNode, index); }
  /// The reference to a small integer, or nothing if it needs more than 30 bits.
  static constexpr std::optional<Ref> small(std::int64_t value) {
    constexpr std::int64_t kHalf = kIndexLimit / 2;
    if (value < -kHalf || value >= kHalf) return std::nullopt;
    return Ref(Tag::kSmall, static_cast<std::uint32_t>(value + kHalf));
  }

  [[nodiscard]] constexpr Tag tag() const { return static_cast<Tag>(bits_ >> 30); }
  [[nodiscard]] constexpr std::uint32_t index() const { return bits_ & (kIndexLimit - 1); }
  [[nodiscard]] constexpr std::int64_t small_value() const {
    return static_cast<std::int64_t>(index()) - std::int64_t{kIndexLimit / 2};
  }

  friend constexpr bool operator==(Ref, Ref) = default;

 private:
  constexpr Ref(Tag tag, std::uint32_t index) : bits_(static_cast<std::uint32_t>(tag) << 30 | index) {}

  std::uint32_t bits_;
};

/// A container or a call, in 16 bytes. Its parts are graph.children[start, start + count). It must be
/// initialized with braces.
struct Node {
  enum class Kind : std::uint8_t {
    kTuple,
    kList,
    kSet,
    kFrozenSet,
    kDict,  ///< The parts are key, value, key, value ...
    kGlobal,
    kReduced,     ///< The value is callable(*parts).
    kNewObject,   ///< The value is callable.__new__(callable, *parts).
    kInstance,    ///< The value is callable.__new__(callable); the parts are its states.
    kRecord,      ///< An instance whose one state is a dict; the parts are its keys and values.
    kPersistent,  ///< The node has one part.
  };

  std::uint32_t start;
  std::uint32_t count;
  Ref callable;
  Kind kind;
  bool held;   ///< It is in the memo, or twice on the stack: there may be any number of references.
  bool grown;  ///< It was filled more than once. Used only while the graph is built.
};

static_assert(sizeof(Node) == 16);

/// Parts that only few objects have.
struct NodeExtras {
  Ref kwargs{};             ///< The kwargs are a dict, or None.
  std::vector<Ref> states;  ///< The states of an object that is neither a kInstance nor a kRecord.
  std::vector<Ref> items;
  std::vector<Ref> pairs;
};

/// The values of a pickle as one graph. Containers may refer to each other in any way, even to themselves.
/// Strings, bytes and large numbers stay in the input. The ends of the arrays may be unused.
struct Graph {
  std::span<const std::byte> bytes;
  LargeVector<Node> nodes;
  LargeVector<Ref> children;
  LargeVector<std::uint64_t> atoms;                      ///< Offset in `bytes` of the opcode of each literal.
  std::unordered_map<std::uint32_t, NodeExtras> extras;  ///< Maps the index of a node to its extras.
  Ref root{};
};

[[nodiscard]] inline std::span<const Ref> parts_of(const Graph& graph, const Node& node) {
  return std::span(graph.children).subspan(node.start, node.count);
}

}  // namespace accel::ckpt::pickle
