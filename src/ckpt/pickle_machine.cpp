#include "ckpt/pickle_machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/error.hpp"

namespace accel::ckpt::pickle {
namespace {

[[noreturn]] void reject(std::string message) { throw Error(ErrorKind::kCorrupt, std::move(message)); }

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

const Node* Machine::run() {
  if (bytes_.size() < 2 ||
      std::to_integer<std::uint8_t>(bytes_[0]) != static_cast<std::uint8_t>(Op::kProto)) {
    reject("not a pickle of protocol 2 or later");
  }
  while (true) {
    const std::size_t at = position_;
    const auto op = static_cast<Op>(take_uint(1));
    if (op == Op::kStop) break;
    try {
      step(op);
    } catch (Error& e) {
      e.add_context(fmt::format("byte {} of the pickle (opcode 0x{:02x})", at, static_cast<unsigned>(op)));
      throw;
    }
  }
  if (position_ != bytes_.size()) {
    reject(fmt::format("{} bytes follow the end of the pickle", bytes_.size() - position_));
  }
  if (stack_.size() != 1 || !marks_.empty()) reject("the pickle ends with other than one value");
  return stack_.front();
}

void Machine::step(Op op) {
  if (push_scalar(op) || push_text(op) || container(op) || memo(op) || call(op)) return;
  switch (op) {
    case Op::kProto: {
      const std::uint64_t protocol = take_uint(1);
      if (protocol < 2 || protocol > 5) reject(fmt::format("pickle protocol {}; 2 to 5 are read", protocol));
      return;
    }
    case Op::kFrame:
      take_uint(8);
      return;  // A hint for buffering; the opcodes go on as without it.
    case Op::kMark:
      marks_.push_back(stack_.size());
      return;
    case Op::kPop:
      // As in Python: a mark counts as an element of the stack.
      if (!marks_.empty() && marks_.back() == stack_.size()) {
        marks_.pop_back();
      } else {
        pop();
      }
      return;
    case Op::kPopMark:
      pop_to_mark();
      return;
    case Op::kDup:
      push(top());
      return;
    default:
      reject("unknown opcode");
  }
}

bool Machine::push_scalar(Op op) {
  switch (op) {
    case Op::kNone:
      push_leaf(None{});
      return true;
    case Op::kNewTrue:
      push_leaf(true);
      return true;
    case Op::kNewFalse:
      push_leaf(false);
      return true;
    case Op::kBinInt:
      push_leaf(std::int64_t{static_cast<std::int32_t>(take_uint(4))});
      return true;
    case Op::kBinInt1:
      push_leaf(static_cast<std::int64_t>(take_uint(1)));
      return true;
    case Op::kBinInt2:
      push_leaf(static_cast<std::int64_t>(take_uint(2)));
      return true;
    case Op::kLong1:
      push_long(take(take_uint(1)));
      return true;
    case Op::kLong4:
      push_long(take(take_uint(4)));
      return true;
    case Op::kBinFloat: {
      std::uint64_t bits = 0;  // The one big-endian number of the format.
      for (const std::byte b : take(8)) bits = bits << 8 | std::to_integer<std::uint64_t>(b);
      push_leaf(std::bit_cast<double>(bits));
      return true;
    }
    default:
      return false;
  }
}

bool Machine::push_text(Op op) {
  switch (op) {
    case Op::kShortBinUnicode:
    case Op::kShortBinString:
      push_leaf(take_text(1));
      return true;
    case Op::kBinUnicode:
    case Op::kBinString:
      push_leaf(take_text(4));
      return true;
    case Op::kBinUnicode8:
      push_leaf(take_text(8));
      return true;
    case Op::kShortBinBytes:
      push_leaf(Bytes{std::string(take_text(1))});
      return true;
    case Op::kBinBytes:
      push_leaf(Bytes{std::string(take_text(4))});
      return true;
    case Op::kBinBytes8:
    case Op::kByteArray8:
      push_leaf(Bytes{std::string(take_text(8))});
      return true;
    default:
      return false;
  }
}

bool Machine::container(Op op) {
  const auto last = [&](std::size_t count) {
    std::vector<Node*> items(count);
    for (std::size_t i = count; i-- > 0;) items[i] = pop();
    return items;
  };
  switch (op) {
    case Op::kEmptyTuple:
      push_tuple({});
      return true;
    case Op::kTuple1:
      push_tuple(last(1));
      return true;
    case Op::kTuple2:
      push_tuple(last(2));
      return true;
    case Op::kTuple3:
      push_tuple(last(3));
      return true;
    case Op::kTuple:
      push_tuple(pop_to_mark());
      return true;
    case Op::kEmptyList:
      push(make(Kind::kList));
      return true;
    case Op::kEmptyDict:
      push(make(Kind::kDict));
      return true;
    case Op::kEmptySet:
      push(make(Kind::kSet));
      return true;
    case Op::kList:
    case Op::kFrozenSet: {
      std::vector<Node*> items = pop_to_mark();
      push(make(op == Op::kList ? Kind::kList : Kind::kFrozenSet));
      top()->items = std::move(items);
      return true;
    }
    case Op::kDict: {
      std::vector<Node*> items = pop_to_mark();
      push(make(Kind::kDict));
      set_items(std::move(items));
      return true;
    }
    case Op::kAppend:
      append(last(1));
      return true;
    case Op::kAppends:
    case Op::kAddItems:
      append(pop_to_mark());
      return true;
    case Op::kSetItem:
      set_items(last(2));
      return true;
    case Op::kSetItems:
      set_items(pop_to_mark());
      return true;
    default:
      return false;
  }
}

bool Machine::memo(Op op) {
  switch (op) {
    case Op::kBinPut:
      remember(take_uint(1));
      return true;
    case Op::kLongBinPut:
      remember(take_uint(4));
      return true;
    case Op::kMemoize:
      remember(memo_.size());
      return true;
    case Op::kBinGet:
      recall(take_uint(1));
      return true;
    case Op::kLongBinGet:
      recall(take_uint(4));
      return true;
    default:
      return false;
  }
}

bool Machine::call(Op op) {
  switch (op) {
    case Op::kGlobal: {
      const std::string_view module = take_line();
      push_leaf(Global(module, take_line()));
      return true;
    }
    case Op::kStackGlobal: {
      const auto* name = pop()->leaf.get<std::string>();  // Nodes stay, also when popped.
      const auto* module = pop()->leaf.get<std::string>();
      if (name == nullptr || module == nullptr) reject("a name that is not a string");
      push_leaf(Global(*module, *name));
      return true;
    }
    case Op::kReduce:
    case Op::kNewObj: {
      Node* args = pop();
      Node* callable = pop();
      push_call(op == Op::kReduce ? Kind::kReduced : Kind::kNewObject, callable, args, nullptr);
      return true;
    }
    case Op::kNewObjEx: {
      Node* kwargs = pop();
      Node* args = pop();
      Node* callable = pop();
      push_call(Kind::kNewObject, callable, args, kwargs);
      return true;
    }
    case Op::kBuild: {
      Node* state = pop();
      Node* object = top();
      if (object->kind != Kind::kReduced && object->kind != Kind::kNewObject)
        reject("state for something without state");
      object->states.push_back(state);
      return true;
    }
    case Op::kBinPersId: {
      Node* id = pop();
      push(make(Kind::kPersistent));
      top()->args = {id};
      return true;
    }
    default:
      return false;
  }
}

std::span<const std::byte> Machine::take(std::uint64_t count) {
  if (count > bytes_.size() - position_) reject("the pickle ends early");
  const auto taken = bytes_.subspan(position_, count);
  position_ += count;
  return taken;
}

std::uint64_t Machine::take_uint(std::size_t width) {
  const std::span<const std::byte> bytes = take(width);
  std::uint64_t value = 0;
  for (std::size_t i = width; i-- > 0;) value = value << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  return value;
}

std::string_view Machine::take_text(std::size_t length_width) {
  return as_text(take(take_uint(length_width)));
}

std::string_view Machine::take_line() {
  const std::string_view rest = as_text(bytes_.subspan(position_));
  const std::size_t end = rest.find('\n');
  if (end == std::string_view::npos) reject("the pickle ends early");
  position_ += end + 1;
  return rest.substr(0, end);
}

void Machine::push_long(std::span<const std::byte> digits) {
  if (digits.size() > 8) {
    push_leaf(BigInt{std::string(as_text(digits))});
    return;
  }
  const bool negative = !digits.empty() && (digits.back() & std::byte{0x80}) != std::byte{0};
  std::uint64_t value = negative ? ~std::uint64_t{0} : 0;
  for (std::size_t i = digits.size(); i-- > 0;)
    value = value << 8 | std::to_integer<std::uint64_t>(digits[i]);
  push_leaf(static_cast<std::int64_t>(value));
}

Node* Machine::make(Kind kind) {
  if (nodes_.size() >= limits_.values) reject(fmt::format("more than {} values", limits_.values));
  nodes_.emplace_back();
  nodes_.back().kind = kind;
  return &nodes_.back();
}

void Machine::push_leaf(Value value) {
  Node* node = make(Kind::kLeaf);
  node->leaf = std::move(value);
  push(node);
}

Node* Machine::pop() {
  Node* node = top();
  stack_.pop_back();
  return node;
}

Node* Machine::top() {
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) reject("the stack is empty");
  return stack_.back();
}

std::vector<Node*> Machine::pop_to_mark() {
  if (marks_.empty()) reject("a mark is missing");
  const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  std::vector<Node*> items(begin, stack_.end());
  stack_.erase(begin, stack_.end());
  marks_.pop_back();
  return items;
}

void Machine::push_tuple(std::vector<Node*> items) {
  push(make(Kind::kTuple));
  top()->args = std::move(items);
}

void Machine::append(std::vector<Node*> items) {
  Node* target = top();
  switch (target->kind) {
    case Kind::kList:
    case Kind::kSet:
    case Kind::kReduced:
    case Kind::kNewObject:
      target->items.insert(target->items.end(), items.begin(), items.end());
      return;
    default:
      reject("items for something that is not a list");
  }
}

void Machine::set_items(std::vector<Node*> items) {
  if (items.size() % 2 != 0) reject("a key without a value");
  Node* target = top();
  switch (target->kind) {
    case Kind::kDict:
      target->items.insert(target->items.end(), items.begin(), items.end());
      return;
    case Kind::kReduced:
    case Kind::kNewObject:
      target->pairs.insert(target->pairs.end(), items.begin(), items.end());
      return;
    default:
      reject("entries for something that is not a dict");
  }
}

void Machine::push_call(Kind kind, Node* callable, Node* args, Node* kwargs) {
  if (args->kind != Kind::kTuple) reject("arguments that are not a tuple");
  if (kwargs != nullptr && kwargs->kind != Kind::kDict) reject("keyword arguments that are not a dict");
  Node* node = make(kind);
  node->args = {callable};
  node->args.insert(node->args.end(), args->args.begin(), args->args.end());
  if (kwargs != nullptr) node->kwargs = kwargs->items;
  push(node);
}

void Machine::remember(std::uint64_t index) { memo_[index] = top(); }

void Machine::recall(std::uint64_t index) {
  const auto found = memo_.find(index);
  if (found == memo_.end()) reject(fmt::format("memo {} was never set", index));
  push(found->second);
}

}  // namespace accel::ckpt::pickle
