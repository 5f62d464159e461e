#include "ckpt/torch/weights_only.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "ckpt/tensor/dtype.hpp"

namespace accel::ckpt {
namespace {

using pickle::Global;
using pickle::Object;
using pickle::ObjectParts;
using pickle::Persistent;
using pickle::Value;

// The names that torch._weights_only_unpickler allows and that can be in an object without tensors. Python
// itself maps the names of Python 2.
constexpr std::array<std::string_view, 12> kAllowed = {
    "__builtin__.bytearray",   "__builtin__.complex", "__builtin__.set", "_codecs.encode",
    "builtins.bytearray",      "builtins.complex",    "builtins.set",    "collections.Counter",
    "collections.OrderedDict", "torch.Size",          "torch.device",    "torch.serialization._get_layout"};

bool is_allowed(const Global& global) {
  if (global.module() == "torch" && dtype_of_torch_name(global.name())) return true;
  return std::find(kAllowed.begin(), kAllowed.end(), global.qualified()) != kAllowed.end();
}

std::string unsafe_in(const pickle::Values& values) {
  for (const Value& value : values) {
    if (std::string part = unsafe_part(value); !part.empty()) return part;
  }
  return "";
}

std::string unsafe_in(const pickle::Pairs& pairs) {
  for (const auto& [key, value] : pairs) {
    if (std::string part = unsafe_part(key); !part.empty()) return part;
    if (std::string part = unsafe_part(value); !part.empty()) return part;
  }
  return "";
}

std::string unsafe_object(const ObjectParts& parts) {
  const auto* callable = parts.callable.get<Global>();
  if (callable == nullptr) return pickle::describe(parts.callable);
  if (!is_allowed(*callable)) return callable->qualified();
  const bool ordered = callable->qualified() == "collections.OrderedDict";
  const bool mapping = ordered || callable->qualified() == "collections.Counter";
  // Only lists may be appended to, and only a few classes may get attributes and pairs.
  if (!parts.items.empty() || !parts.kwargs.empty() || (!parts.states.empty() && !ordered) ||
      (!parts.pairs.empty() && !mapping)) {
    return callable->qualified();
  }
  for (const pickle::Values* values : {&parts.args, &parts.states}) {
    if (std::string part = unsafe_in(*values); !part.empty()) return part;
  }
  return unsafe_in(parts.pairs);
}

}  // namespace

std::string unsafe_part(const Value& value) {
  if (value.get<Persistent>() != nullptr) return "a tensor";
  if (const auto* global = value.get<Global>()) return is_allowed(*global) ? "" : global->qualified();
  if (const auto* set = value.get<pickle::Set>()) return set->frozen ? "frozenset" : unsafe_in(set->items);
  if (const auto* dict = value.get<pickle::Dict>()) return unsafe_in(dict->items);
  if (const auto* items = pickle::sequence_of(value)) return unsafe_in(*items);
  if (const auto* object = value.get<Object>()) return unsafe_object(**object);
  return "";
}

}  // namespace accel::ckpt
