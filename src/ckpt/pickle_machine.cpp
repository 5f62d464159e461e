#include "ckpt/pickle_machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/error.hpp"
#include "ckpt/pickle_document.hpp"
#include "ckpt/pickle_memo.hpp"
#include "ckpt/pickle_opcodes.hpp"
#include "ckpt/pickle_scan.hpp"

namespace accel::ckpt::pickle {
namespace {

using Kind = Node::Kind;

[[noreturn]] void reject(std::string message) { throw Error(ErrorKind::kCorrupt, std::move(message)); }

std::span<const std::byte> checked_start(std::span<const std::byte> bytes) {
  if (bytes.size() < 2 || static_cast<Op>(bytes[0]) != Op::kProto)
    reject("not a pickle of protocol 2 or later");
  return bytes;
}

// The values that the opcodes work on. What was taken off stays readable until the next push.
class Stack {
 public:
  [[gnu::always_inline]] void push(Ref value) {
    if (height_ == refs_.size()) [[unlikely]]
      grow();
    refs_[height_++] = value;
  }
  [[nodiscard, gnu::always_inline]] Ref top() const {
    if (height_ <= floor_) reject("the stack is empty");
    return refs_[height_ - 1];
  }
  Ref pop() {
    const Ref value = top();
    --height_;
    return value;
  }
  [[gnu::always_inline]] std::span<const Ref> take(std::size_t count) {
    if (height_ - floor_ < count) reject("the stack is empty");
    height_ -= count;
    return std::span(refs_).subspan(height_, count);
  }
  void mark() {
    marks_.push_back(height_);
    floor_ = height_;
  }
  [[nodiscard]] bool mark_is_top() const { return !marks_.empty() && floor_ == height_; }
  void drop_mark() {
    marks_.pop_back();
    floor_ = marks_.empty() ? 0 : marks_.back();
  }
  std::span<const Ref> take_marked() {
    if (marks_.empty()) reject("a mark is missing");
    const std::span<const Ref> taken = take(height_ - floor_);
    drop_mark();
    return taken;
  }
  [[nodiscard]] bool holds_one() const { return height_ == 1 && marks_.empty(); }

 private:
  [[gnu::noinline]] void grow() { refs_.resize(std::max<std::size_t>(64, height_ * 2)); }

  std::vector<Ref> refs_;
  std::size_t height_ = 0;
  std::size_t floor_ = 0;  // The last mark.
  std::vector<std::size_t> marks_;
};

// What every other opcode calls is always_inline: the compiler takes the machine for too large to do it by
// itself.
class Machine {
 public:
  explicit Machine(std::span<const std::byte> bytes) : Machine(bytes, scan(checked_start(bytes))) {}

  Graph run() {
    Op op = Op::kProto;
    try {
      while (op != Op::kStop) {
        op = static_cast<Op>(graph_.bytes[position_]);
        step(op);
        if (op != Op::kStop) position_ = next_;
      }
    } catch (Error& e) {
      e.add_context(place_of(graph_.bytes, position_));
      throw;
    }
    const std::size_t rest = graph_.bytes.size() - next_;
    if (rest != 0) reject(fmt::format("{} bytes follow the end of the pickle", rest));
    if (!stack_.holds_one()) reject("the pickle ends with other than one value");
    graph_.root = stack_.top();
    return std::move(graph_);
  }

 private:
  Machine(std::span<const std::byte> bytes, const Scan& scan) : memo_(scan.fetched, bytes.size()) {
    graph_.bytes = bytes;
    graph_.nodes.reserve(scan.nodes);
    graph_.atoms.reserve(scan.atoms);
    graph_.children.reserve(scan.values);
  }

  // One opcode. The scan has seen that its argument is there.
  void step(Op op) {
    next_ = position_ + 1;
    switch (op) {
      case Op::kMark:
        return stack_.mark();
      case Op::kPop:
        // As in Python: a mark counts as an element of the stack.
        if (stack_.mark_is_top()) return stack_.drop_mark();
        stack_.pop();
        return;
      case Op::kPopMark:
        stack_.take_marked();
        return;
      case Op::kDup:
        hold(stack_.top());
        return stack_.push(stack_.top());

      case Op::kNone:
        return stack_.push(Ref());
      case Op::kNewTrue:
        return stack_.push(Ref::boolean(true));
      case Op::kNewFalse:
        return stack_.push(Ref::boolean(false));
      case Op::kBinInt1:
        return push_integer(fixed<std::uint8_t>());
      case Op::kBinInt2:
        return push_integer(fixed<std::uint16_t>());
      case Op::kBinInt:
        return push_integer(fixed<std::int32_t>());
      case Op::kLong1:
      case Op::kLong4:
        return push_long();
      case Op::kBinFloat:
      case Op::kShortBinUnicode:
      case Op::kShortBinString:
      case Op::kBinUnicode:
      case Op::kBinString:
      case Op::kBinUnicode8:
      case Op::kShortBinBytes:
      case Op::kBinBytes:
      case Op::kBinBytes8:
      case Op::kByteArray8:
      case Op::kGlobal:
        next_ = argument_at(graph_.bytes, position_).end;
        return push_atom();

      case Op::kEmptyTuple:
        return stack_.push(Ref::empty_tuple());
      case Op::kTuple1:
        return push_tuple(stack_.take(1));
      case Op::kTuple2:
        return push_tuple(stack_.take(2));
      case Op::kTuple3:
        return push_tuple(stack_.take(3));
      case Op::kTuple:
        return push_tuple(stack_.take_marked());
      case Op::kEmptyList:
        return push_filled(Kind::kList, {});
      case Op::kEmptyDict:
        return push_filled(Kind::kDict, {});
      case Op::kEmptySet:
        return push_filled(Kind::kSet, {});
      case Op::kList:
        return push_filled(Kind::kList, stack_.take_marked());
      case Op::kFrozenSet:
        return push_filled(Kind::kFrozenSet, stack_.take_marked());
      case Op::kDict:
        return push_filled(Kind::kDict, checked_pairs(stack_.take_marked()));
      case Op::kAppend:
        return append(stack_.take(1));
      case Op::kAppends:
      case Op::kAddItems:
        return append(stack_.take_marked());
      case Op::kSetItem:
        return set_items(stack_.take(2));
      case Op::kSetItems:
        return set_items(checked_pairs(stack_.take_marked()));

      case Op::kBinPut:
        return put(fixed<std::uint8_t>());
      case Op::kLongBinPut:
        return put(fixed<std::uint32_t>());
      case Op::kMemoize:
        if (memo_.count() >= memo_.limit()) reject_memo(memo_.count());
        if (memo_.put_next(stack_.top())) hold(stack_.top());
        return;
      case Op::kBinGet:
        return get(fixed<std::uint8_t>());
      case Op::kLongBinGet:
        return get(fixed<std::uint32_t>());

      case Op::kStackGlobal:
        return push_global(stack_.take(2));
      case Op::kReduce:
        return push_call(Kind::kReduced, stack_.take(2), Ref());
      case Op::kNewObj:
        return push_call(Kind::kNewObject, stack_.take(2), Ref());
      case Op::kNewObjEx: {
        const Ref kwargs = stack_.pop();
        if (!NodeRef(graph_, kwargs).dict()) reject("keyword arguments that are not a dict");
        return push_call(Kind::kNewObject, stack_.take(2), kwargs);
      }
      case Op::kBuild:
        return build(stack_.pop());
      case Op::kBinPersId:
        return push_filled(Kind::kPersistent, stack_.take(1));

      case Op::kProto: {
        const std::uint8_t protocol = fixed<std::uint8_t>();
        if (protocol >= 2 && protocol <= 5) return;
        reject(fmt::format("pickle protocol {}; 2 to 5 are read", protocol));
      }
      case Op::kFrame:
        next_ += 8;
        return;  // A hint for buffering; the opcodes go on as without it.
      case Op::kStop:
        return;
    }
    reject("unknown opcode");
  }

  template <class T>
  [[gnu::always_inline]] T fixed() {
    static_assert(std::endian::native == std::endian::little);
    T value;
    std::memcpy(&value, graph_.bytes.data() + next_, sizeof(T));
    next_ += sizeof(T);
    return value;
  }

  [[gnu::always_inline]] void push_integer(std::int64_t value) {
    const std::optional<Ref> small = Ref::small(value);
    if (small) return stack_.push(*small);
    push_atom();
  }

  void push_long() {
    const Argument argument = argument_at(graph_.bytes, position_);
    next_ = argument.end;
    const std::optional<std::int64_t> value = integer_of_digits(text_in(graph_.bytes, argument));
    if (value) return push_integer(*value);
    push_atom();
  }

  void push_atom() {
    if (graph_.atoms.size() >= Ref::kIndexLimit) reject("too many literals");
    stack_.push(Ref::atom(static_cast<std::uint32_t>(graph_.atoms.size())));
    graph_.atoms.push_back(position_);
  }

  // Nodes are used again as soon as nothing can refer to them any more.
  [[gnu::always_inline]] void push_node(const Node& node) {
    if (!unused_.empty()) {
      const std::uint32_t index = unused_.back();
      unused_.pop_back();
      graph_.nodes[index] = node;
      return stack_.push(Ref::node(index));
    }
    if (graph_.nodes.size() >= Ref::kIndexLimit) reject("too many containers");
    stack_.push(Ref::node(static_cast<std::uint32_t>(graph_.nodes.size())));
    graph_.nodes.push_back(node);
  }

  Node* node_of(Ref ref) { return ref.tag() == Ref::Tag::kNode ? &graph_.nodes[ref.index()] : nullptr; }

  void hold(Ref ref) {
    if (Node* node = node_of(ref)) node->held = true;
  }

  // For a node that was just taken off the stack and whose parts have found another place.
  void release(Ref ref) {
    if (!graph_.nodes[ref.index()].held) unused_.push_back(ref.index());
  }

  [[gnu::always_inline]] std::uint32_t store(std::span<const Ref> values) {
    LargeVector<Ref>& children = graph_.children;
    check_room(values.size());
    const auto start = static_cast<std::uint32_t>(children.size());
    for (const Ref value : values) children.push_back(value);
    return start;
  }

  void check_room(std::size_t count) const {
    if (count > UINT32_MAX - graph_.children.size()) reject("too many values");
  }

  void push_tuple(std::span<const Ref> items) {
    if (items.empty()) return stack_.push(Ref::empty_tuple());
    push_filled(Kind::kTuple, items);
  }

  [[gnu::always_inline]] void push_filled(Kind kind, std::span<const Ref> parts) {
    const auto count = static_cast<std::uint32_t>(parts.size());
    push_node({.start = store(parts), .count = count, .kind = kind});
  }

  // The first filling takes what it needs, as most containers are filled once; after that they double.
  void extend(Ref container, std::span<const Ref> parts) {
    Node& node = graph_.nodes[container.index()];
    const std::size_t count = node.count + parts.size();
    if (node.count == 0) {
      node.start = store(parts);
    } else {
      if (count > room_of(container)) make_room(container, node, count);
      std::copy(parts.begin(), parts.end(), graph_.children.begin() + node.start + node.count);
    }
    node.count = static_cast<std::uint32_t>(count);
  }

  std::uint32_t room_of(Ref container) const {
    const Node& node = graph_.nodes[container.index()];
    return node.grown ? rooms_.at(container.index()) : node.count;
  }

  void make_room(Ref container, Node& node, std::size_t count) {
    LargeVector<Ref>& children = graph_.children;
    const std::uint32_t before = room_of(container);
    const std::size_t room = std::max(count, std::size_t{before} * 2);
    check_room(room);
    if (std::size_t{node.start} + before != children.size()) {
      const std::size_t start = children.size();
      children.resize(start + node.count);
      std::copy_n(children.begin() + node.start, node.count,
                  children.begin() + static_cast<std::ptrdiff_t>(start));
      node.start = static_cast<std::uint32_t>(start);
    }
    children.resize(node.start + room);
    rooms_[container.index()] = static_cast<std::uint32_t>(room);
    node.grown = true;
  }

  std::span<const Ref> checked_pairs(std::span<const Ref> pairs) {
    if (pairs.size() % 2 != 0) reject("a key without a value");
    return pairs;
  }

  [[nodiscard]] static bool is_object(const Node& node) {
    return node.kind == Kind::kReduced || node.kind == Kind::kNewObject || node.kind == Kind::kInstance ||
           node.kind == Kind::kRecord;
  }

  void append(std::span<const Ref> items) {
    const Node* target = node_of(stack_.top());
    if (target != nullptr && (target->kind == Kind::kList || target->kind == Kind::kSet))
      return extend(stack_.top(), items);
    if (target == nullptr || !is_object(*target)) reject("items for something that is not a list");
    std::vector<Ref>& all = extras().items;
    all.insert(all.end(), items.begin(), items.end());
  }

  void set_items(std::span<const Ref> pairs) {
    const Node* target = node_of(stack_.top());
    if (target != nullptr && target->kind == Kind::kDict) return extend(stack_.top(), pairs);
    if (target == nullptr || !is_object(*target)) reject("entries for something that is not a dict");
    std::vector<Ref>& all = extras().pairs;
    all.insert(all.end(), pairs.begin(), pairs.end());
  }

  // Of the object on top.
  NodeExtras& extras() { return graph_.extras[stack_.top().index()]; }

  [[noreturn]] static void reject_memo(std::uint64_t index) {
    reject(fmt::format("memo {} in so short a pickle", index));
  }

  void put(std::uint64_t index) {
    if (index >= memo_.limit()) reject_memo(index);
    if (memo_.put(index, stack_.top())) hold(stack_.top());
  }

  [[gnu::always_inline]] void get(std::uint64_t index) {
    const std::optional<Ref> value = memo_.get(index);
    if (!value) [[unlikely]]
      reject_unset(index);
    stack_.push(*value);
  }

  [[noreturn]] static void reject_unset(std::uint64_t index) {
    reject(fmt::format("memo {} was never set", index));
  }

  void push_global(std::span<const Ref> names) {
    for (const Ref name : names) {
      if (!NodeRef(graph_, name).text()) reject("a name that is not a string");
    }
    push_filled(Kind::kGlobal, names);
  }

  // The call shares the parts of the tuple, which cannot change any more; copies would let a small pickle
  // grow.
  [[gnu::always_inline]] void push_call(Kind kind, std::span<const Ref> callable_and_args, Ref kwargs) {
    Node node{.callable = callable_and_args[0], .kind = kind};
    const Ref args = callable_and_args[1];
    if (args != Ref::empty_tuple()) {
      const Node* tuple = node_of(args);
      if (tuple == nullptr || tuple->kind != Kind::kTuple) reject("arguments that are not a tuple");
      node.start = tuple->start;
      node.count = tuple->count;
      release(args);
    }
    push_node(node);
    if (kwargs != Ref()) extras().kwargs = kwargs;
  }

  void build(Ref state) {
    Node* object = node_of(stack_.top());
    if (object == nullptr || !is_object(*object)) reject("state for something without state");
    if (object->kind == Kind::kRecord) {
      unmake_record(stack_.top());
      object = node_of(stack_.top());
    }
    const Node* dict = node_of(state);
    if (object->kind == Kind::kNewObject && object->count == 0) {
      object->kind = Kind::kInstance;
      if (dict != nullptr && dict->kind == Kind::kDict && !dict->held) {
        object->kind = Kind::kRecord;
        object->start = dict->start;
        object->count = dict->count;
        return release(state);
      }
    }
    if (object->kind == Kind::kInstance) return extend(stack_.top(), {&state, 1});
    extras().states.push_back(state);
  }

  // A second state comes: the first one has to be a dict again.
  void unmake_record(Ref record) {
    Node dict = graph_.nodes[record.index()];
    dict.kind = Kind::kDict;
    dict.held = dict.grown = false;
    push_node(dict);
    const Ref state = stack_.pop();
    Node& object = graph_.nodes[record.index()];
    object.kind = Kind::kInstance;
    object.start = object.count = 0;
    extend(record, {&state, 1});
  }

  Graph graph_;
  Memo memo_;
  Stack stack_;
  std::size_t position_ = 0;  // Of the opcode that is being run,
  std::size_t next_ = 0;      // and of the one after it.
  std::vector<std::uint32_t> unused_;
  std::unordered_map<std::uint32_t, std::uint32_t> rooms_;  // By node: parts for which a grown one has room.
};

}  // namespace

Graph run_machine(std::span<const std::byte> bytes) { return Machine(bytes).run(); }

}  // namespace accel::ckpt::pickle
