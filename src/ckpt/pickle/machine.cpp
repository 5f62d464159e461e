#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/error_context.hpp"
#include "base/interrupt.hpp"
#include "base/metadata_limit.hpp"
#include "ckpt/pickle/builder.hpp"
#include "ckpt/pickle/document.hpp"
#include "ckpt/pickle/memo.hpp"
#include "ckpt/pickle/node.hpp"
#include "ckpt/pickle/opcodes.hpp"
#include "ckpt/pickle/scan.hpp"
#include "ckpt/pickle/stack.hpp"

namespace accel::ckpt::pickle {
namespace {

using Kind = Node::Kind;

// Functions that most opcodes call are always_inline: step() is so large that the compiler would not inline
// them by itself.
class Machine {
 public:
  Machine(Graph& graph, const Scan& scan)
      : bytes_(graph.bytes),
        graph_(graph),
        builder_(graph, scan.counts),
        memo_(scan.fetched, graph.bytes.size()) {}

  // Runs all opcodes up to STOP. The scan has checked that there is one.
  void run() {
    constexpr std::size_t kPieceBytes = std::size_t{1} << 20;  // Signals are noticed in between.
    while (static_cast<Op>(bytes_[next_]) != Op::kStop) {
      check_interrupted();
      run_piece(std::min(bytes_.size(), next_ + kPieceBytes));
    }
  }

  // Gives the graph its root, when all opcodes have run.
  void finish() {
    const std::size_t rest = bytes_.size() - next_ - 1;
    if (rest != 0) throw_corrupt(fmt::format("{} bytes follow the end of the pickle", rest));
    if (!stack_.holds_one()) throw_corrupt("the pickle ends with other than one value");
    graph_.root = stack_.top();
  }

  // The byte of the opcode that ran last.
  [[nodiscard]] std::size_t position() const { return position_; }

 private:
  void run_piece(std::size_t end) {
    std::size_t next = next_;  // A local variable stays in a register.
    while (next < end && static_cast<Op>(bytes_[next]) != Op::kStop) {
      position_ = next++;
      step(static_cast<Op>(bytes_[position_]), next);
    }
    next_ = next;
  }

  // Runs one opcode. `next` is the byte behind the opcode, and afterwards the byte behind its argument, which
  // the scan has checked.
  [[gnu::always_inline]] void step(Op op, std::size_t& next) {
    switch (op) {
      case Op::kMark:
        return stack_.mark();
      case Op::kPop:
        // A mark counts as an element of the stack, as it does in Python.
        if (stack_.mark_is_top()) return stack_.drop_mark();
        stack_.pop();
        return;
      case Op::kPopMark:
        stack_.take_marked();
        return;
      case Op::kDup:
        builder_.hold(stack_.top());
        return stack_.push(stack_.top());

      case Op::kNone:
        return stack_.push(Ref());
      case Op::kNewTrue:
        return stack_.push(Ref::boolean(true));
      case Op::kNewFalse:
        return stack_.push(Ref::boolean(false));
      case Op::kBinInt1:
        return push_integer(fixed<std::uint8_t>(next));
      case Op::kBinInt2:
        return push_integer(fixed<std::uint16_t>(next));
      case Op::kBinInt:
        return push_integer(fixed<std::int32_t>(next));
      case Op::kLong1:
      case Op::kLong4:
        return push_long(next);
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
        next = argument_at(bytes_, position_).end;
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
        return put(fixed<std::uint8_t>(next));
      case Op::kLongBinPut:
        return put(fixed<std::uint32_t>(next));
      case Op::kMemoize:
        return put(memo_.count());
      case Op::kBinGet:
        return get(fixed<std::uint8_t>(next));
      case Op::kLongBinGet:
        return get(fixed<std::uint32_t>(next));

      case Op::kStackGlobal:
        return push_global(stack_.take(2));
      case Op::kReduce:
        return push_call(Kind::kReduced, stack_.take(2), Ref());
      case Op::kNewObj:
        return push_call(Kind::kNewObject, stack_.take(2), Ref());
      case Op::kNewObjEx: {
        const Ref kwargs = stack_.pop();
        if (!NodeRef(graph_, kwargs).dict()) throw_corrupt("keyword arguments that are not a dict");
        return push_call(Kind::kNewObject, stack_.take(2), kwargs);
      }
      case Op::kBuild:
        return build(stack_.pop());
      case Op::kBinPersId:
        return push_filled(Kind::kPersistent, stack_.take(1));

      case Op::kProto: {
        const std::uint8_t protocol = fixed<std::uint8_t>(next);
        if (protocol >= 2 && protocol <= 5) return;
        throw_corrupt(fmt::format("pickle protocol {}; 2 to 5 are read", protocol));
      }
      case Op::kFrame: {  // A frame is a hint for buffering, but Python rejects one that is longer than the
                          // rest.
        const auto length = fixed<std::uint64_t>(next);
        if (length > bytes_.size() - next)
          throw_corrupt("a frame that is longer than the rest of the pickle");
        return;
      }
      case Op::kStop:
        return;
    }
    throw_corrupt("unknown opcode");
  }

  template <class T>
  [[gnu::always_inline]] T fixed(std::size_t& next) {
    static_assert(std::endian::native == std::endian::little);
    T value;
    std::memcpy(&value, bytes_.data() + next, sizeof(T));
    next += sizeof(T);
    return value;
  }

  [[gnu::always_inline]] void push_integer(std::int64_t value) {
    const std::optional<Ref> small = Ref::small(value);
    if (small) return stack_.push(*small);
    push_atom();
  }

  void push_long(std::size_t& next) {
    const Argument argument = argument_at(bytes_, position_);
    next = argument.end;
    const std::optional<std::int64_t> value = integer_of_digits(text_in(bytes_, argument));
    if (value) return push_integer(*value);
    push_atom();
  }

  void push_atom() { stack_.push(builder_.add_atom(position_)); }

  void push_tuple(std::span<const Ref> items) {
    if (items.empty()) return stack_.push(Ref::empty_tuple());
    push_filled(Kind::kTuple, items);
  }

  [[gnu::always_inline]] void push_filled(Kind kind, std::span<const Ref> parts) {
    stack_.push(builder_.add_node(kind, parts));
  }

  std::span<const Ref> checked_pairs(std::span<const Ref> pairs) {
    if (pairs.size() % 2 != 0) throw_corrupt("a key without a value");
    return pairs;
  }

  [[nodiscard]] static bool is_object(const Node& node) {
    return node.kind == Kind::kReduced || node.kind == Kind::kNewObject || node.kind == Kind::kInstance ||
           node.kind == Kind::kRecord;
  }

  void append(std::span<const Ref> items) {
    const Ref top = stack_.top();
    const Node* target = builder_.node_of(top);
    if (target != nullptr && (target->kind == Kind::kList || target->kind == Kind::kSet))
      return builder_.extend(top, items);
    if (target == nullptr || !is_object(*target)) throw_corrupt("items for something that is not a list");
    std::vector<Ref>& all = builder_.extras(top).items;
    all.insert(all.end(), items.begin(), items.end());
  }

  void set_items(std::span<const Ref> pairs) {
    const Ref top = stack_.top();
    const Node* target = builder_.node_of(top);
    if (target != nullptr && target->kind == Kind::kDict) return builder_.extend(top, pairs);
    if (target == nullptr || !is_object(*target)) throw_corrupt("entries for something that is not a dict");
    std::vector<Ref>& all = builder_.extras(top).pairs;
    all.insert(all.end(), pairs.begin(), pairs.end());
  }

  [[noreturn]] static void reject_memo(std::uint64_t index) {
    throw_corrupt(fmt::format("memo {} is larger than the pickle", index));
  }

  void put(std::uint64_t index) {
    if (index >= memo_.limit()) reject_memo(index);
    if (memo_.put(index, stack_.top())) builder_.hold(stack_.top());
  }

  [[gnu::always_inline]] void get(std::uint64_t index) {
    const std::optional<Ref> value = memo_.get(index);
    if (!value) [[unlikely]]
      throw_corrupt(fmt::format("memo {} was never set", index));
    stack_.push(*value);
  }

  void push_global(std::span<const Ref> names) {
    for (const Ref name : names) {
      if (!NodeRef(graph_, name).text()) throw_corrupt("a name that is not a string");
    }
    push_filled(Kind::kGlobal, names);
  }

  // The call shares the parts of the tuple, which cannot change any more. With copies, a small pickle could
  // take much memory.
  [[gnu::always_inline]] void push_call(Kind kind, std::span<const Ref> callable_and_args, Ref kwargs) {
    Node node{.callable = callable_and_args[0], .kind = kind};
    const Ref args = callable_and_args[1];
    if (args != Ref::empty_tuple()) {
      const Node* tuple = builder_.node_of(args);
      if (tuple == nullptr || tuple->kind != Kind::kTuple) throw_corrupt("arguments that are not a tuple");
      node.start = tuple->start;
      node.count = tuple->count;
      builder_.release(args);
    }
    stack_.push(builder_.add_node(node));
    if (kind == Kind::kReduced && node.count == 1) take_entries(stack_.top(), node);
    if (kwargs != Ref()) builder_.extras(stack_.top()).kwargs = kwargs;
  }

  // Gives an OrderedDict that is made from its entries, as Python 2 pickles it, those entries.
  void take_entries(Ref made, const Node& call) {
    const auto name = NodeRef(graph_, call.callable).global();
    if (!name || name->module != "collections" || name->name != "OrderedDict") return;
    const NodeRef argument(graph_, parts_of(graph_, call)[0]);
    std::vector<Ref> pairs;
    if (const auto mapping = argument.mapping()) {
      for (std::size_t i = 0; i < mapping->size(); ++i)
        pairs.insert(pairs.end(), {mapping->key(i).id(), mapping->value(i).id()});
    } else if (const auto entries = argument.sequence()) {
      for (std::size_t i = 0; i < entries->size(); ++i) {
        const auto entry = (*entries)[i].sequence();
        if (!entry || entry->size() != 2) throw_corrupt("an entry of an OrderedDict that is not a pair");
        pairs.insert(pairs.end(), entry->ids().begin(), entry->ids().end());
      }
    } else {
      throw_corrupt("an OrderedDict of other than entries");
    }
    copied_ += pairs.size() * sizeof(Ref);  // Calls can share one list.
    check_metadata_bytes("what the pickle builds", copied_);
    builder_.node_of(made)->count = 0;
    builder_.extras(made).pairs = std::move(pairs);
  }

  void build(Ref state) {
    const Ref top = stack_.top();
    Node* object = builder_.node_of(top);
    if (object == nullptr || !is_object(*object)) throw_corrupt("state for something without state");
    if (object->kind == Kind::kRecord) {
      unmake_record(top);
      object = builder_.node_of(top);
    }
    const Node* dict = builder_.node_of(state);
    if (object->kind == Kind::kNewObject && object->count == 0) {
      object->kind = Kind::kInstance;
      if (dict != nullptr && dict->kind == Kind::kDict && !dict->held) {
        object->kind = Kind::kRecord;
        object->start = dict->start;
        object->count = dict->count;
        return builder_.release(state);
      }
    }
    if (object->kind == Kind::kInstance) return builder_.extend(top, {&state, 1});
    builder_.extras(top).states.push_back(state);
  }

  // A record gets a second state, so its first state becomes a dict again.
  void unmake_record(Ref record) {
    Node dict = *builder_.node_of(record);
    dict.kind = Kind::kDict;
    dict.held = dict.grown = false;
    const Ref state = builder_.add_node(dict);
    Node& object = *builder_.node_of(record);
    object.kind = Kind::kInstance;
    object.start = object.count = 0;
    builder_.extend(record, {&state, 1});
  }

  std::span<const std::byte> bytes_;
  Graph& graph_;
  GraphBuilder builder_;
  Memo memo_;
  Stack stack_;
  std::size_t position_ = 0;  // The byte of the opcode that runs.
  std::size_t next_ = 0;      // The first byte of the next piece.
  std::size_t copied_ = 0;    // The bytes of the entries that were copied into OrderedDicts.
};

void check_start(std::span<const std::byte> bytes) {
  if (bytes.size() < 2 || static_cast<Op>(bytes[0]) != Op::kProto)
    throw_corrupt("not a pickle of protocol 2 or later");
}

}  // namespace

Document::Document(std::span<const std::byte> bytes) {
  check_start(bytes);
  graph_.bytes = bytes;
  Machine machine(graph_, scan(bytes));
  with_context([&] { return place_of(bytes, machine.position()); }, [&] { machine.run(); });
  machine.finish();
}

}  // namespace accel::ckpt::pickle
