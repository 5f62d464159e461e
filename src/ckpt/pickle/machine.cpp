#include "ckpt/pickle/machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "base/threads.hpp"
#include "ckpt/pickle/builder.hpp"
#include "ckpt/pickle/memo.hpp"
#include "ckpt/pickle/node.hpp"
#include "ckpt/pickle/opcodes.hpp"
#include "ckpt/pickle/put_off.hpp"
#include "ckpt/pickle/scan.hpp"
#include "ckpt/pickle/stack.hpp"

namespace accel::ckpt::pickle {
namespace {

using Kind = Node::Kind;

[[noreturn]] void reject(std::string message) { throw Error(ErrorKind::kCorrupt, std::move(message)); }

// A second half needs what only the first one knows.
struct Unknown {};

// What every other opcode calls is always_inline: else the compiler takes the machine for too large.
//
// One that begins in the middle of the pickle knows neither the stack nor the memo that it would have there.
// What it fetches from the memo of before is a reference that says so, and stays one until the first half is
// done. An opcode that needs values from beneath its stack is put off, for the first half to run it, together
// with what lies on the stack. That is seldom: within a dict of a million, once for the thousand entries that
// a pickle adds at a time.
class Machine {
 public:
  // For the part of the pickle from `first` on, which is all of it or a half; `counts` is for that part.
  Machine(Graph& graph, const Scan& scan, const ScanMiddle& first, const ScanCounts& counts, bool alone)
      : bytes_(graph.bytes),
        graph_(graph),
        builder_(graph, first.before, counts, alone),
        memo_(scan.fetched, graph.bytes.size(), first.memoized),
        stack_(first.position != 0),
        first_known_(first.memoized),
        next_(first.position) {}

  // Up to `end`, which is where an opcode begins, or to STOP.
  void run_to(std::size_t end) { run<false>(end); }

  // A second half, up to STOP.
  void run_second_half() {
    while (true) {
      try {
        return run<true>(bytes_.size());
      } catch (const Stack::Beneath&) {
        put_off();
      }
    }
  }

  // Goes on where `second`, which began where this one has ended, is at STOP.
  void take_over(Machine& second) {
    builder_.go_on_after(second.builder_);
    const auto push = [&](Ref value) { value == Ref::mark() ? stack_.mark() : stack_.push(known(value)); };
    second.put_off_.run_all(push, [&](const PutOffOpcodes::Opcode& opcode) { run_put_off(opcode); });
    second.stack_.empty(push, [&] { stack_.mark(); });
    builder_.resolve_from(second.builder_, [&](Ref& ref) { ref = known(ref); });
    for (const Unchecked& global : second.unchecked_) {
      position_ = global.position;
      check_names(parts_of(graph_, *builder_.node_of(global.node)));
    }
    next_ = second.next_;
  }

  // At STOP.
  void finish() {
    const std::size_t rest = bytes_.size() - next_ - 1;
    if (rest != 0) reject(fmt::format("{} bytes follow the end of the pickle", rest));
    if (!stack_.holds_one()) reject("the pickle ends with other than one value");
    graph_.root = stack_.top();
    builder_.finish(graph_);
  }

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  [[nodiscard]] std::size_t position() const { return position_; }

 private:
  static constexpr std::size_t kMostPutOff = 1'000'000;  // Far more than an honest pickle has.
  struct Unchecked {
    std::size_t position = 0;
    Ref node{};  // A kGlobal.
  };

  template <bool kSecondHalf>
  void run(std::size_t end) {
    constexpr std::size_t kPieceBytes = std::size_t{1} << 20;  // Signals are noticed in between.
    while (next_ < end && static_cast<Op>(bytes_[next_]) != Op::kStop) {
      check_interrupted();
      run_piece<kSecondHalf>(std::min(end, next_ + kPieceBytes));
    }
  }

  template <bool kSecondHalf>
  void run_piece(std::size_t end) {
    // What the loop goes by stays in a register.
    std::size_t next = next_;
    while (next < end && static_cast<Op>(bytes_[next]) != Op::kStop) {
      position_ = next++;
      if constexpr (kSecondHalf) before_ = stack_.position();
      step(static_cast<Op>(bytes_[position_]), next);
    }
    next_ = next;
  }

  void put_off() {
    if (put_off_.count() == kMostPutOff) throw Unknown();
    stack_.go_back(before_);
    put_off_.add(position_, memo_.count(), stack_);
    if (static_cast<Op>(bytes_[position_]) == Op::kMemoize)
      memo_.put_next(Ref::foreign(static_cast<std::uint32_t>(memo_.count())));
    next_ = argument_at(bytes_, position_).end;
  }

  void run_put_off(const PutOffOpcodes::Opcode& opcode) {
    position_ = opcode.position;
    const auto op = static_cast<Op>(bytes_[position_]);
    if (op == Op::kMemoize) return put(opcode.memoized);
    std::size_t next = position_ + 1;
    step(op, next);
  }

  [[nodiscard]] Ref known(Ref ref) {
    if (!ref.is_foreign()) return ref;
    const std::optional<Ref> value = memo_.get(ref.foreign_index());
    if (!value) reject_unset(ref.foreign_index());
    return *value;
  }

  // One opcode, `next` is then behind its argument. The scan has seen that that is there.
  [[gnu::always_inline]] void step(Op op, std::size_t& next) {
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
        if (memo_.count() >= memo_.limit()) reject_memo(memo_.count());
        if (memo_.put_next(stack_.top())) builder_.hold(stack_.top());
        return;
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
        require_known(kwargs);
        if (!NodeRef(graph_, kwargs).dict()) reject("keyword arguments that are not a dict");
        return push_call(Kind::kNewObject, stack_.take(2), kwargs);
      }
      case Op::kBuild:
        return build(stack_.pop());
      case Op::kBinPersId:
        return push_filled(Kind::kPersistent, stack_.take(1));

      case Op::kProto: {
        const std::uint8_t protocol = fixed<std::uint8_t>(next);
        if (protocol >= 2 && protocol <= 5) return;
        reject(fmt::format("pickle protocol {}; 2 to 5 are read", protocol));
      }
      case Op::kFrame: {  // A hint for buffering, but Python stops at one that is longer than the rest.
        const auto length = fixed<std::uint64_t>(next);
        if (length > bytes_.size() - next) reject("a frame that is longer than the rest of the pickle");
        return;
      }
      case Op::kStop:
        return;
    }
    reject("unknown opcode");
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

  static void require_known(Ref value) {
    if (value.is_foreign()) [[unlikely]]
      throw Unknown();
  }
  [[nodiscard]] Ref known_top() const {
    require_known(stack_.top());
    return stack_.top();
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
    const Ref top = known_top();
    const Node* target = builder_.node_of(top);
    if (target != nullptr && (target->kind == Kind::kList || target->kind == Kind::kSet))
      return builder_.extend(top, items);
    if (target == nullptr || !is_object(*target)) reject("items for something that is not a list");
    std::vector<Ref>& all = builder_.extras(top).items;
    all.insert(all.end(), items.begin(), items.end());
  }

  void set_items(std::span<const Ref> pairs) {
    const Ref top = known_top();
    const Node* target = builder_.node_of(top);
    if (target != nullptr && target->kind == Kind::kDict) return builder_.extend(top, pairs);
    if (target == nullptr || !is_object(*target)) reject("entries for something that is not a dict");
    std::vector<Ref>& all = builder_.extras(top).pairs;
    all.insert(all.end(), pairs.begin(), pairs.end());
  }

  [[noreturn]] static void reject_memo(std::uint64_t index) {
    reject(fmt::format("memo {} in so short a pickle", index));
  }

  void put(std::uint64_t index) {
    if (index >= memo_.limit()) reject_memo(index);
    if (memo_.put(index, stack_.top())) builder_.hold(stack_.top());
  }

  [[gnu::always_inline]] void get(std::uint64_t index) {
    if (index < first_known_) return stack_.push(Ref::foreign(static_cast<std::uint32_t>(index)));
    const std::optional<Ref> value = memo_.get(index);
    if (!value) [[unlikely]]
      reject_unset(index);
    stack_.push(*value);
  }

  [[noreturn]] static void reject_unset(std::uint64_t index) {
    reject(fmt::format("memo {} was never set", index));
  }

  void push_global(std::span<const Ref> names) {
    const bool known = std::none_of(names.begin(), names.end(), [](Ref name) { return name.is_foreign(); });
    if (known) check_names(names);
    push_filled(Kind::kGlobal, names);
    if (!known) unchecked_.push_back({position_, stack_.top()});
  }

  void check_names(std::span<const Ref> names) const {
    for (const Ref name : names) {
      if (!NodeRef(graph_, name).text()) reject("a name that is not a string");
    }
  }

  // The call shares the parts of the tuple, which cannot change any more; copies would let a small pickle
  // grow.
  [[gnu::always_inline]] void push_call(Kind kind, std::span<const Ref> callable_and_args, Ref kwargs) {
    Node node{.callable = callable_and_args[0], .kind = kind};
    const Ref args = callable_and_args[1];
    if (args != Ref::empty_tuple()) {
      require_known(args);
      const Node* tuple = builder_.node_of(args);
      if (tuple == nullptr || tuple->kind != Kind::kTuple) reject("arguments that are not a tuple");
      node.start = tuple->start;
      node.count = tuple->count;
      builder_.release(args);
    }
    stack_.push(builder_.add_node(node));
    if (kwargs != Ref()) builder_.extras(stack_.top()).kwargs = kwargs;
  }

  // What is known only by the memo is held, and so never the state of a record.
  void build(Ref state) {
    const Ref top = known_top();
    Node* object = builder_.node_of(top);
    if (object == nullptr || !is_object(*object)) reject("state for something without state");
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

  // A second state comes: the first one has to be a dict again.
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
  std::uint64_t first_known_;  // Of the memo's indices.
  std::size_t position_ = 0;   // Of the opcode that is being run,
  std::size_t next_;           // and at first and at last, of the next one.
  // Of a second half.
  Stack::Position before_;  // The opcode that is being run.
  PutOffOpcodes put_off_;
  std::vector<Unchecked> unchecked_;
};

template <class Work>
void with_place(const Machine& machine, Work work) {
  try {
    work();
  } catch (Error& e) {
    e.add_context(place_of(machine.bytes(), machine.position()));
    throw;
  }
}

void check_start(std::span<const std::byte> bytes) {
  if (bytes.size() < 2 || static_cast<Op>(bytes[0]) != Op::kProto)
    reject("not a pickle of protocol 2 or later");
}

// Whether it could be done: the graph is of no use if not.
bool run_halves(Graph& graph, const Scan& scan) {
  const ScanMiddle& middle = *scan.middle;
  if (scan.fetched.size() * 64 > Ref::kForeignLimit) return false;
  Machine first(graph, scan, {}, middle.before, false);
  Machine second(graph, scan, middle, scan.counts - middle.before, false);
  bool second_is_done = false;
  try {
    const auto run_second = [&] {
      try {
        second.run_second_half();
        second_is_done = true;
      } catch (const Error&) {  // To be met again by one machine, which knows whether it is one.
      } catch (const Unknown&) {
      }
    };
    run_both([&] { with_place(first, [&] { first.run_to(middle.position); }); }, run_second);
    if (!second_is_done) return false;
    with_place(first, [&] { first.take_over(second); });
    first.finish();
  } catch (const GraphBuilder::Full&) {
    return false;
  }
  return true;
}

}  // namespace

Graph run_machine(std::span<const std::byte> bytes) {
  check_start(bytes);
  return run_machine(bytes, scan(bytes));
}

Graph run_machine(std::span<const std::byte> bytes, const Scan& scan) {
  check_start(bytes);
  Graph graph;
  graph.bytes = bytes;
  GraphBuilder::reserve(graph, scan.counts);
  if (scan.middle && run_halves(graph, scan)) return graph;
  Machine machine(graph, scan, {}, scan.counts, true);
  with_place(machine, [&] { machine.run_to(bytes.size()); });
  machine.finish();
  return graph;
}

}  // namespace accel::ckpt::pickle
