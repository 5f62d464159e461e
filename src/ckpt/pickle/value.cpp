#include "ckpt/pickle/value.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <type_traits>

namespace accel::ckpt::pickle {
namespace {

bool same_values(const Values& a, const Values& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
}

bool same_pairs(const Pairs& a, const Pairs& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return same(x.first, y.first) && same(x.second, y.second);
  });
}

bool same_one(None, None) { return true; }
bool same_one(bool a, bool b) { return a == b; }
bool same_one(std::int64_t a, std::int64_t b) { return a == b; }
bool same_one(const BigInt& a, const BigInt& b) { return a.bytes == b.bytes; }
bool same_one(double a, double b) {
  return (a != a && b != b) || std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}
bool same_one(const std::string& a, const std::string& b) { return a == b; }
bool same_one(const Bytes& a, const Bytes& b) { return a.data == b.data; }
bool same_one(const Tuple& a, const Tuple& b) { return same_values(a.items, b.items); }
bool same_one(const List& a, const List& b) { return same_values(a.items, b.items); }
bool same_one(const Set& a, const Set& b) { return a.frozen == b.frozen && same_values(a.items, b.items); }
bool same_one(const Dict& a, const Dict& b) { return same_pairs(a.items, b.items); }
bool same_one(const Global& a, const Global& b) { return a == b; }
bool same_one(const Object& a, const Object& b) {
  return a->form == b->form && same(a->callable, b->callable) && same_values(a->args, b->args) &&
         same_pairs(a->kwargs, b->kwargs) && same_values(a->states, b->states) &&
         same_values(a->items, b->items) && same_pairs(a->pairs, b->pairs);
}
bool same_one(const Persistent& a, const Persistent& b) { return same_values(a.id, b.id); }

std::string describe_one(None) { return "None"; }
std::string describe_one(bool v) { return v ? "True" : "False"; }
std::string describe_one(std::int64_t v) { return fmt::format("{}", v); }
std::string describe_one(const BigInt& v) { return fmt::format("an integer of {} bytes", v.bytes.size()); }
std::string describe_one(double v) { return fmt::format("{}", v); }
std::string describe_one(const std::string& v) {
  constexpr std::size_t kShown = 60;
  return v.size() <= kShown ? fmt::format("'{}'", v) : fmt::format("'{}...'", v.substr(0, kShown));
}
std::string describe_one(const Bytes& v) { return fmt::format("{} bytes", v.data.size()); }
std::string describe_one(const Tuple& v) { return fmt::format("a tuple of {}", v.items.size()); }
std::string describe_one(const List& v) { return fmt::format("a list of {}", v.items.size()); }
std::string describe_one(const Set& v) { return fmt::format("a set of {}", v.items.size()); }
std::string describe_one(const Dict& v) { return fmt::format("a dict of {}", v.items.size()); }
std::string describe_one(const Global& v) { return v.qualified(); }
std::string describe_one(const Object& v) { return fmt::format("{}(...)", describe(v->callable)); }
std::string describe_one(const Persistent&) { return "a persistent reference"; }

}  // namespace

Global::Global(std::string_view module, std::string_view name)
    : text_(fmt::format("{}.{}", module, name)), module_size_(module.size()) {}

Object::Object(ObjectParts parts) : parts_(std::make_shared<const ObjectParts>(std::move(parts))) {}

Value reduce(Global callable, Values args) {
  ObjectParts parts;
  parts.callable = std::move(callable);
  parts.args = std::move(args);
  return Object(std::move(parts));
}

Value instance(Global type, Value state) {
  ObjectParts parts;
  parts.form = ObjectParts::Form::kNew;
  parts.callable = std::move(type);
  parts.states.push_back(std::move(state));
  return Object(std::move(parts));
}

const ObjectParts* object_of(const Value& value, std::string_view module, std::string_view name) {
  const auto* object = value.get<Object>();
  if (object == nullptr) return nullptr;
  const auto* callable = (*object)->callable.get<Global>();
  if (callable == nullptr || callable->module() != module || callable->name() != name) return nullptr;
  return &**object;
}

const Pairs* mapping_of(const Value& value) {
  if (const auto* dict = value.get<Dict>()) return &dict->items;
  if (const auto* parts = object_of(value, "collections", "OrderedDict")) return &parts->pairs;
  return nullptr;
}

const Values* sequence_of(const Value& value) {
  if (const auto* tuple = value.get<Tuple>()) return &tuple->items;
  if (const auto* list = value.get<List>()) return &list->items;
  return nullptr;
}

const Pairs* attributes_of(const Value& state) {
  const auto* both = state.get<Tuple>();
  return mapping_of(both != nullptr && both->items.size() == 2 ? both->items[1] : state);
}

const Value* find(const Pairs& pairs, std::string_view key) {
  for (auto pair = pairs.rbegin(); pair != pairs.rend(); ++pair) {
    const auto* text = pair->first.get<std::string>();
    if (text != nullptr && *text == key) return &pair->second;
  }
  return nullptr;
}

bool any_part(const Value& value, const std::function<bool(const Value&)>& test) {
  const auto in_values = [&](const Values& values) {
    return std::any_of(values.begin(), values.end(), test);
  };
  const auto in_pairs = [&](const Pairs& pairs) {
    return std::any_of(pairs.begin(), pairs.end(),
                       [&](const auto& pair) { return test(pair.first) || test(pair.second); });
  };
  if (const auto* set = value.get<Set>()) return in_values(set->items);
  if (const auto* dict = value.get<Dict>()) return in_pairs(dict->items);
  if (const auto* items = sequence_of(value)) return in_values(*items);
  const auto* object = value.get<Object>();
  if (object == nullptr) return false;
  const ObjectParts& parts = **object;
  return test(parts.callable) || in_values(parts.args) || in_pairs(parts.kwargs) || in_values(parts.states) ||
         in_values(parts.items) || in_pairs(parts.pairs);
}

std::string describe(const Value& value) {
  return std::visit([](const auto& v) { return describe_one(v); }, value.data());
}

bool same(const Value& a, const Value& b) {
  return std::visit(
      [](const auto& x, const auto& y) {
        if constexpr (std::is_same_v<decltype(x), decltype(y)>) {
          return same_one(x, y);
        } else {
          return false;
        }
      },
      a.data(), b.data());
}

}  // namespace accel::ckpt::pickle
