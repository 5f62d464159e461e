#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ckpt/pickle_opcodes.hpp"
#include "ckpt/pickle_reader.hpp"

namespace accel::ckpt::pickle {

/// What the machine builds: containers refer to each other freely, even to themselves. All nodes live as long
/// as the machine, so nothing is freed recursively.
struct Node {
  enum class Kind : std::uint8_t {
    kLeaf,
    kTuple,
    kList,
    kSet,
    kFrozenSet,
    kDict,
    kReduced,
    kNewObject,
    kPersistent
  };

  Kind kind = Kind::kLeaf;
  Value leaf;
  std::vector<Node*> args;    ///< Elements of a tuple; of an object, the callable, then its arguments.
  std::vector<Node*> items;   ///< Of lists, sets, dicts (key, value, key, value ...) and objects.
  std::vector<Node*> pairs;   ///< Of objects: key, value, ...
  std::vector<Node*> kwargs;  ///< Of objects: name, value, ...
  std::vector<Node*> states;
};

/// Runs the opcodes of a pickle on a stack of nodes.
class Machine {
 public:
  Machine(std::span<const std::byte> bytes, const Limits& limits) : bytes_(bytes), limits_(limits) {}

  /// Runs up to STOP and returns what is left on the stack.
  const Node* run();

 private:
  using Kind = Node::Kind;

  void step(Op op);
  bool push_scalar(Op op);
  bool push_text(Op op);
  bool container(Op op);
  bool memo(Op op);
  bool call(Op op);

  std::span<const std::byte> take(std::uint64_t count);
  std::uint64_t take_uint(std::size_t width);
  std::string_view take_text(std::size_t length_width);
  std::string_view take_line();
  void push_long(std::span<const std::byte> digits);

  Node* make(Kind kind);
  void push(Node* node) { stack_.push_back(node); }
  void push_leaf(Value value);
  Node* pop();
  Node* top();
  std::vector<Node*> pop_to_mark();
  void push_tuple(std::vector<Node*> items);
  void append(std::vector<Node*> items);
  void set_items(std::vector<Node*> items);
  void push_call(Kind kind, Node* callable, Node* args, Node* kwargs);
  void remember(std::uint64_t index);
  void recall(std::uint64_t index);

  std::span<const std::byte> bytes_;
  Limits limits_;
  std::size_t position_ = 0;
  std::deque<Node> nodes_;
  std::vector<Node*> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, Node*> memo_;
};

}  // namespace accel::ckpt::pickle
