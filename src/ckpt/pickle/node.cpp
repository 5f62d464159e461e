#include "ckpt/pickle/node.hpp"

#include <fmt/format.h>

#include <bit>
#include <utility>

#include "ckpt/pickle/opcodes.hpp"
#include "ckpt/pickle/scan.hpp"
#include "ckpt/pickle/value.hpp"

namespace accel::ckpt::pickle {
namespace {

using Kind = Node::Kind;

struct Literal {
  Op op;
  std::string_view text;
};

// The literal of an atom. The machine has checked that its argument is complete.
std::optional<Literal> literal_of(const Graph& graph, Ref ref) {
  if (ref.tag() != Ref::Tag::kAtom) return std::nullopt;
  const std::uint64_t at = graph.atoms[ref.index()];
  return Literal{static_cast<Op>(graph.bytes[at]), text_in(graph.bytes, argument_at(graph.bytes, at))};
}

std::uint64_t number_of(std::string_view bytes) {
  return number_in(std::as_bytes(std::span(bytes)), {0, bytes.size()});
}

// Describes any value but a call.
std::string describe_plain(NodeRef value) {
  constexpr std::size_t kEnough = 100;  // More bytes than describe() shows of a text.
  if (value.is_none()) return describe(None{});
  if (const auto truth = value.boolean()) return describe(*truth);
  if (const auto number = value.integer()) return describe(*number);
  if (const auto number = value.real()) return describe(*number);
  if (const auto text = value.text()) return describe(text->substr(0, kEnough));
  if (const auto bytes = value.bytes()) return fmt::format("{} bytes", bytes->size());
  if (const auto digits = value.big_integer()) return fmt::format("an integer of {} bytes", digits->size());
  if (const auto name = value.global()) return fmt::format("{}.{}", name->module, name->name);
  if (value.tuple()) return fmt::format("a tuple of {}", value.tuple()->size());
  if (const auto list = value.sequence()) return fmt::format("a list of {}", list->size());
  if (const auto dict = value.dict()) return fmt::format("a dict of {}", dict->size());
  const Node* node = value.node();
  if (node == nullptr || node->kind == Kind::kPersistent) return "a persistent reference";
  return fmt::format("a set of {}", node->count);
}

}  // namespace

std::optional<bool> NodeRef::boolean() const {
  if (ref_ == Ref::boolean(true)) return true;
  if (ref_ == Ref::boolean(false)) return false;
  return std::nullopt;
}

std::optional<std::int64_t> NodeRef::large_integer() const {
  const std::optional<Literal> literal = literal_of(*graph_, ref_);
  if (!literal) return std::nullopt;
  switch (literal->op) {
    case Op::kBinInt:
      return static_cast<std::int32_t>(number_of(literal->text));
    case Op::kLong1:
    case Op::kLong4:
      return integer_of_digits(literal->text);
    default:
      return std::nullopt;
  }
}

std::optional<std::string_view> NodeRef::big_integer() const {
  const std::optional<Literal> literal = literal_of(*graph_, ref_);
  if (!literal || (literal->op != Op::kLong1 && literal->op != Op::kLong4) || literal->text.size() <= 8)
    return std::nullopt;
  return literal->text;
}

std::optional<double> NodeRef::real() const {
  const std::optional<Literal> literal = literal_of(*graph_, ref_);
  if (!literal || literal->op != Op::kBinFloat) return std::nullopt;
  std::uint64_t bits = 0;  // This is the only big-endian number of the format.
  for (const char c : literal->text) bits = bits << 8 | static_cast<unsigned char>(c);
  return std::bit_cast<double>(bits);
}

std::optional<std::string_view> NodeRef::text() const {
  const std::optional<Literal> literal = literal_of(*graph_, ref_);
  if (!literal) return std::nullopt;
  switch (literal->op) {
    case Op::kShortBinUnicode:
    case Op::kShortBinString:
    case Op::kBinUnicode:
    case Op::kBinString:
    case Op::kBinUnicode8:
      return literal->text;
    default:
      return std::nullopt;
  }
}

std::optional<std::string_view> NodeRef::bytes() const {
  const std::optional<Literal> literal = literal_of(*graph_, ref_);
  if (!literal) return std::nullopt;
  switch (literal->op) {
    case Op::kShortBinBytes:
    case Op::kBinBytes:
    case Op::kBinBytes8:
    case Op::kByteArray8:
      return literal->text;
    default:
      return std::nullopt;
  }
}

std::optional<NodeRef::GlobalName> NodeRef::global() const {
  if (const Node* found = node(); found != nullptr && found->kind == Kind::kGlobal) {
    const NodeList names(*graph_, parts_of(*graph_, *found));
    return GlobalName{*names[0].text(), *names[1].text()};
  }
  const std::optional<Literal> literal = literal_of(*graph_, ref_);
  if (!literal || literal->op != Op::kGlobal) return std::nullopt;
  const std::size_t line = literal->text.find('\n');
  return GlobalName{literal->text.substr(0, line),
                    literal->text.substr(line + 1, literal->text.size() - line - 2)};
}

std::optional<NodePairs> NodeRef::dict() const {
  const Node* found = node();
  if (found == nullptr || found->kind != Kind::kDict) return std::nullopt;
  return NodePairs(*graph_, parts_of(*graph_, *found));
}

std::optional<NodePairs> NodeRef::mapping() const {
  const std::optional<NodeCall> built = call();
  if (!built) return dict();
  const auto name = built->callable().global();
  if (!name || name->module != "collections" || name->name != "OrderedDict") return std::nullopt;
  return built->pairs();
}

const NodeExtras& NodeCall::extras() const {
  static const NodeExtras kNone;
  if (graph_->extras.empty()) return kNone;
  const auto found = graph_->extras.find(ref_.index());
  return found != graph_->extras.end() ? found->second : kNone;
}

NodeList NodeCall::states() const {
  if (node_->kind == Kind::kInstance) return {*graph_, parts_of(*graph_, *node_)};
  return {*graph_, extras().states};
}

std::optional<std::int64_t> integer_of_digits(std::string_view digits) {
  if (digits.size() > 8) return std::nullopt;
  const bool negative = !digits.empty() && (static_cast<unsigned char>(digits.back()) & 0x80U) != 0;
  std::uint64_t value = negative ? ~std::uint64_t{0} : 0;
  for (std::size_t i = digits.size(); i-- > 0;)
    value = value << 8 | static_cast<std::uint64_t>(static_cast<unsigned char>(digits[i]));
  return static_cast<std::int64_t>(value);
}

std::string describe(NodeRef value) {
  constexpr int kShownCalls = 4;
  std::string calls;
  for (std::optional<NodeCall> call = value.call(); call; call = value.call()) {
    if (calls.size() >= kShownCalls * std::string_view("(...)").size()) return "a call" + calls;
    calls += "(...)";
    value = call->callable();
  }
  return describe_plain(value) + calls;
}

}  // namespace accel::ckpt::pickle
