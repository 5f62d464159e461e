#include "ckpt/pickle/fields.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"

namespace accel::ckpt::pickle {

void reject(std::string_view what, NodeRef found) {
  throw Error(ErrorKind::kCorrupt, fmt::format("{}, found {}", what, describe(found)));
}

std::string_view require_text(NodeRef value, std::string_view what) {
  const std::optional<std::string_view> text = value.text();
  if (!text) reject(fmt::format("{} is not a string", what), value);
  return *text;
}

std::uint64_t require_size(NodeRef value, std::string_view what) {
  const std::optional<std::int64_t> number = value.integer();
  if (!number || *number < 0) reject(fmt::format("{} is not a size", what), value);
  return static_cast<std::uint64_t>(*number);
}

NodePairs require_mapping(NodeRef value, std::string_view what) {
  const std::optional<NodePairs> pairs = value.mapping();
  if (!pairs) reject(fmt::format("{} is not a dict", what), value);
  return *pairs;
}

bool Type::is(NodeRef value) {
  const std::optional<NodeCall> call = value.call();
  if (!call) return false;
  const NodeRef callable = call->callable();
  if (callable.id() == known_) return !callable.is_none();
  const auto global = callable.global();
  if (!global || global->name != name_) return false;
  if (!(module_.ends_with('.') ? global->module.starts_with(module_) : global->module == module_))
    return false;
  known_ = callable.id();
  return true;
}

std::optional<NodePairs> Type::find(NodeRef value) {
  if (!is(value)) return std::nullopt;
  const NodeCall call = *value.call();
  if (const auto record = call.record()) return record;
  if (call.states().empty()) return NodePairs(value.graph(), {});
  return call.states()[0].dict();
}

NodePairs Type::require(NodeRef value) {
  const std::optional<NodePairs> fields = find(value);
  if (!fields) reject(fmt::format("a {} is expected", name_), value);
  return *fields;
}

std::optional<NodeRef> Field::find(const NodePairs& pairs) {
  for (std::size_t i = pairs.size(); i-- > 0;) {
    const NodeRef key = pairs.key(i);
    const Ref id = key.id();
    if (id == known_ && !key.is_none()) return pairs.value(i);
    if (std::find(others_.begin(), others_.end(), id) != others_.end() && !key.is_none()) continue;
    if (key.text() != name_) {
      others_[next_other_] = id;
      next_other_ = (next_other_ + 1) % others_.size();
      continue;
    }
    known_ = id;
    return pairs.value(i);
  }
  return std::nullopt;
}

NodeRef Field::require(const NodePairs& pairs) {
  const std::optional<NodeRef> value = find(pairs);
  if (!value) throw Error(ErrorKind::kCorrupt, fmt::format("{} without '{}'", of_, name_));
  return *value;
}

}  // namespace accel::ckpt::pickle
