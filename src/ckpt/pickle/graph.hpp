#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/large_memory.hpp"

namespace accel::ckpt::pickle {

/// A value in 32 bits: a number that fits, a constant, or where the rest of it is. Equal references are the
/// same value; different ones may be equal all the same.
class Ref {
 public:
  enum class Tag : std::uint32_t {
    kConstant,
    kSmall,  ///< An integer of 30 bits.
    kAtom,   ///< Graph::atoms
    kNode,   ///< Graph::nodes
  };
  static constexpr std::uint32_t kIndexLimit = std::uint32_t{1} << 30;

  /// None, if it is initialized as `Ref()` or `Ref x{}`: arrays of millions are left as they are.
  constexpr Ref() = default;
  static constexpr Ref boolean(bool value) { return Ref(Tag::kConstant, value ? 2 : 1); }
  static constexpr Ref empty_tuple() { return Ref(Tag::kConstant, 3); }
  static constexpr Ref atom(std::uint32_t index) { return Ref(Tag::kAtom, index); }
  static constexpr Ref node(std::uint32_t index) { return Ref(Tag::kNode, index); }
  /// Nothing if the integer needs more than 30 bits.
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

/// A container or a call, in 16 bytes. Its parts are graph.children[start, start + count). Must be
/// initialized with braces.
struct Node {
  enum class Kind : std::uint8_t {
    kTuple,
    kList,
    kSet,
    kFrozenSet,
    kDict,  ///< Parts: key, value, key, value ...
    kGlobal,
    kReduced,     ///< callable(*parts)
    kNewObject,   ///< callable.__new__(callable, *parts)
    kInstance,    ///< callable.__new__(callable) with the parts as states, one after another.
    kRecord,      ///< The same with one state, a dict: the parts are its keys and values.
    kPersistent,  ///< One part.
  };

  std::uint32_t start;
  std::uint32_t count;
  Ref callable;
  Kind kind;
  bool held;   ///< By the memo, or twice on the stack, and so by who knows how many.
  bool grown;  ///< Filled more than once; only while it is built.
};

static_assert(sizeof(Node) == 16);

/// What few objects have.
struct NodeExtras {
  Ref kwargs{};             ///< A dict, or None.
  std::vector<Ref> states;  ///< Those of any object but a kInstance and a kRecord.
  std::vector<Ref> items;
  std::vector<Ref> pairs;
};

/// What a pickle builds, as one graph: containers refer to each other freely, even to themselves. Strings,
/// bytes and large numbers stay in the input. Not all of the arrays need be used.
struct Graph {
  std::span<const std::byte> bytes;
  LargeVector<Node> nodes;
  LargeVector<Ref> children;
  LargeVector<std::uint64_t> atoms;                      ///< Where the opcode of a literal is in `bytes`.
  std::unordered_map<std::uint32_t, NodeExtras> extras;  ///< By node.
  Ref root{};
};

[[nodiscard]] inline std::span<const Ref> parts_of(const Graph& graph, const Node& node) {
  return std::span(graph.children).subspan(node.start, node.count);
}

}  // namespace accel::ckpt::pickle
