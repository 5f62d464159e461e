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

// Whether torch refuses an object for itself, whatever its arguments and entries are.
bool is_unsafe(const ObjectParts& parts, const Global& callable) {
  const bool ordered = callable.qualified() == "collections.OrderedDict";
  const bool mapping = ordered || callable.qualified() == "collections.Counter";
  // Only lists may be appended to, and only a few classes may get attributes and pairs.
  return !is_allowed(callable) || !parts.items.empty() || !parts.kwargs.empty() ||
         (!parts.states.empty() && !ordered) || (!parts.pairs.empty() && !mapping);
}

}  // namespace

std::string unsafe_part(const Value& value) {
  if (value.get<Persistent>() != nullptr) return "a tensor";
  if (const auto* global = value.get<Global>()) return is_allowed(*global) ? "" : global->qualified();
  if (const auto* set = value.get<pickle::Set>(); set != nullptr && set->frozen) return "frozenset";
  if (const auto* object = value.get<Object>()) {
    const auto* callable = (*object)->callable.get<Global>();
    if (callable == nullptr) return pickle::describe((*object)->callable);
    if (is_unsafe(**object, *callable)) return callable->qualified();
  }
  std::string unsafe;
  (void)pickle::any_part(value, [&](const Value& part) { return !(unsafe = unsafe_part(part)).empty(); });
  return unsafe;
}

}  // namespace accel::ckpt
