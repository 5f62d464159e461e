#include "ckpt/torch/state_walk.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/error_context.hpp"

namespace accel::ckpt {
namespace {

using pickle::Object;
using pickle::ObjectParts;
using pickle::Pairs;
using pickle::Value;
using pickle::Values;

std::optional<PathKey> key_of(const Value& value) {
  if (const auto* text = value.get<std::string>()) return PathKey(*text);
  if (const auto* number = value.get<std::int64_t>()) return PathKey(*number);
  return std::nullopt;
}

// Python's repr() of a string.
std::string repr_of(const std::string& text) {
  const bool has_single = text.find('\'') != std::string::npos;
  const char quote = has_single && text.find('"') == std::string::npos ? '"' : '\'';
  std::string repr(1, quote);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == quote || c == '\\') {
      repr += {'\\', c};
    } else if (c == '\n' || c == '\r' || c == '\t') {
      repr += {'\\', c == '\n' ? 'n' : c == '\r' ? 'r' : 't'};
    } else if (byte < 0x20 || byte == 0x7f) {
      repr += fmt::format("\\x{:02x}", byte);
    } else {
      repr += c;
    }
  }
  return repr + quote;
}

// Python's repr() of a key that is a string, a number, None, a bool or a tuple of these, or nothing for
// others.
std::optional<std::string> repr_of(const Value& key) {
  if (const auto* text = key.get<std::string>()) return repr_of(*text);
  if (key.get<std::int64_t>() != nullptr || key.get<bool>() != nullptr || key.is_none())
    return pickle::describe(key);
  if (const auto* number = key.get<double>()) {
    std::string text = fmt::format("{}", *number);
    return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
  }
  const auto* tuple = key.get<pickle::Tuple>();
  if (tuple == nullptr) return std::nullopt;
  std::string repr = "(";
  for (const Value& item : tuple->items) {
    const std::optional<std::string> part = repr_of(item);
    if (!part) return std::nullopt;
    repr += (repr.size() > 1 ? ", " : "") + *part;
  }
  return repr + (tuple->items.size() == 1 ? ",)" : ")");
}

bool holds_tensor(const Value& value);

// The key of `item` in a path of torch.distributed.checkpoint: the key itself, or its str().
PathKey path_key_of(const Value& key, const Value& item) {
  if (std::optional<PathKey> plain = key_of(key)) return *std::move(plain);
  if (std::optional<std::string> repr = repr_of(key)) return *std::move(repr);
  if (!holds_tensor(item)) return pickle::describe(key);
  throw Error(ErrorKind::kFailure,
              fmt::format("a tensor is under the key {}, which has no name", pickle::describe(key)))
      .hint("save the tensors under strings, numbers or tuples of these");
}

bool has_plain_keys(const Pairs& pairs) {
  return std::all_of(pairs.begin(), pairs.end(),
                     [](const auto& pair) { return key_of(pair.first).has_value(); });
}

bool any_of(const Values& values, bool (*test)(const Value&)) {
  return std::any_of(values.begin(), values.end(), test);
}

bool holds_tensor(const Value& value) {
  if (const Pairs* pairs = pickle::mapping_of(value)) {
    return std::any_of(pairs->begin(), pairs->end(),
                       [](const auto& pair) { return holds_tensor(pair.second); });
  }
  if (const Values* items = pickle::sequence_of(value)) return any_of(*items, holds_tensor);
  if (const auto* set = value.get<pickle::Set>()) return any_of(set->items, holds_tensor);
  const auto* object = value.get<Object>();
  if (object == nullptr) return false;
  if (torch_tensor_of(value)) return true;
  const ObjectParts& parts = **object;
  const auto in_pairs = [](const auto& pair) { return holds_tensor(pair.second); };
  return any_of(parts.args, holds_tensor) || any_of(parts.states, holds_tensor) ||
         any_of(parts.items, holds_tensor) || std::any_of(parts.pairs.begin(), parts.pairs.end(), in_pairs) ||
         std::any_of(parts.kwargs.begin(), parts.kwargs.end(), in_pairs);
}

// Whether a list that contains `value` is entered.
bool is_structure(const Value& value) {
  if (const Pairs* pairs = pickle::mapping_of(value)) return has_plain_keys(*pairs) || holds_tensor(value);
  if (const auto* list = value.get<pickle::List>()) return any_of(list->items, is_structure);
  return holds_tensor(value);
}

// The state of a pickled torch.nn.Module, or nullptr.
const Pairs* module_state_of(const Value& state) {
  const Pairs* pairs = pickle::mapping_of(state);
  if (pairs == nullptr) return nullptr;
  for (const char* key : {"_parameters", "_buffers", "_modules"}) {
    const Value* part = pickle::find(*pairs, key);
    if (part == nullptr || pickle::mapping_of(*part) == nullptr) return nullptr;
  }
  return pairs;
}

// FSDP1 saves one flat tensor for many parameters and does not record where each of them lies in it.
void refuse_flat_shards(const Value& value) {
  const auto* object = value.get<Object>();
  const auto* type = object != nullptr ? (*object)->callable.get<pickle::Global>() : nullptr;
  if (type == nullptr || type->name() != "ShardedTensor" || !type->module().starts_with("torch.distributed"))
    return;
  throw Error(ErrorKind::kFailure, "a ShardedTensor of FSDP1, which accel does not read")
      .hint("save it as a full or a sharded state dict");
}

class Walker {
 public:
  explicit Walker(const StateVisitor& visitor) : visitor_(visitor) {}

  void visit(const Value& value) {
    std::optional<TorchTensor> tensor;
    const auto place = [&] { return path_.empty() ? "its tensor" : fmt::format("'{}'", fqn_of(path_)); };
    with_context(place, [&] {
      tensor = torch_tensor_of(value);
      refuse_flat_shards(value);
    });
    if (tensor) {
      visitor_.tensor(path_, *tensor, value);
    } else if (const Pairs* pairs = pickle::mapping_of(value)) {
      visit_mapping(*pairs, value);
    } else if (is_structure(value)) {
      visit_inside(value);
    } else if (!path_.empty()) {
      visitor_.object(path_, value);
    }
  }

 private:
  void visit_mapping(const Pairs& pairs, const Value& value) {
    if (!has_plain_keys(pairs) && !holds_tensor(value)) {
      if (!path_.empty()) visitor_.object(path_, value);
      return;
    }
    if (pairs.empty() && !path_.empty() && path_.back() == PathKey("state"))
      visitor_.object(path_, pickle::Dict{});
    note_integer_keys(pairs);
    for (const auto& [key, item] : pairs) {
      visit_under(path_key_of(key, item), item);
    }
  }

  void note_integer_keys(const Pairs& pairs) {
    const auto is_integer = [](const auto& pair) {
      return pair.first.template get<std::int64_t>() != nullptr;
    };
    if (visitor_.integer_keys && std::any_of(pairs.begin(), pairs.end(), is_integer))
      visitor_.integer_keys(path_);
  }

  void visit_inside(const Value& value) {
    if (const Values* items = pickle::sequence_of(value)) {
      visit_all(*items);
    } else if (const auto* set = value.get<pickle::Set>()) {
      visit_all(set->items);
    } else if (const auto* object = value.get<Object>()) {
      visit_object(**object);
    }
  }

  void visit_object(const ObjectParts& parts) {
    for (const Value& state : parts.states) {
      if (const Pairs* module = module_state_of(state)) {
        visit_module(*module);
      } else if (holds_tensor(state)) {
        visit(state);
      }
    }
    for (const Values* values : {&parts.args, &parts.items}) {
      if (any_of(*values, holds_tensor)) visit_all(*values);
    }
    for (const Pairs* pairs : {&parts.kwargs, &parts.pairs}) {
      note_integer_keys(*pairs);
      for (const auto& [key, item] : *pairs) {
        if (holds_tensor(item)) visit_under(path_key_of(key, item), item);
      }
    }
  }

  // The names in a module's state_dict() are flat.
  void visit_module(const Pairs& state) {
    const std::size_t outer = std::exchange(module_depth_, std::min(module_depth_, path_.size()));
    for (const char* key : {"_parameters", "_buffers", "_modules"}) {
      for (const auto& [name, item] : *pickle::mapping_of(*pickle::find(state, key))) {
        if (!item.is_none() && holds_tensor(item)) visit_under(path_key_of(name, item), item);
      }
    }
    module_depth_ = outer;
  }

  void visit_all(const Values& items) {
    std::int64_t index = 0;
    for (const Value& item : items) visit_under(index++, item);
  }

  void visit_under(const PathKey& key, const Value& value) {
    if (path_.size() <= module_depth_) {
      path_.push_back(key);
      visit(value);
      path_.pop_back();
      return;
    }
    PathKey outer = std::exchange(path_.back(), fqn_of({path_.back(), key}));
    visit(value);
    path_.back() = std::move(outer);
  }

  const StateVisitor& visitor_;
  StatePath path_;
  std::size_t module_depth_ = SIZE_MAX;  // The keys of path_ above the module that is being visited, if any.
};

}  // namespace

void walk_state(const Value& root, const StateVisitor& visitor) { Walker(visitor).visit(root); }

}  // namespace accel::ckpt
