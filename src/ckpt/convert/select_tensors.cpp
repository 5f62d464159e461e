#include "ckpt/convert/select_tensors.hpp"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "base/error.hpp"
#include "ckpt/read/name_rules.hpp"
#include "ckpt/tensor/convert_dtype.hpp"

namespace accel::ckpt {

SelectedState select_below(const Checkpoint& checkpoint, Layout layout) {
  SelectedState below;
  for (std::size_t i = 0; i < checkpoint.tensors().size(); ++i) {
    const TensorEntry& entry = checkpoint.tensors()[i];
    if (std::optional<StatePath> path = layout.below(entry.path)) {
      below.state.tensors.push_back({std::move(*path), i, entry.dtype, entry.shape, std::nullopt});
    } else {
      below.outside.push_back(entry.name);
    }
  }
  for (std::size_t i = 0; i < checkpoint.objects().size(); ++i) {
    const ObjectEntry& entry = checkpoint.objects()[i];
    if (std::optional<StatePath> path = layout.below(entry.path)) {
      below.objects.push_back({std::move(*path), i});
    } else {
      below.outside_objects.push_back(entry.name);
    }
  }
  for (StatePath path : checkpoint.dicts()) {
    path.push_back("");  // The path of an entry is longer than that of the level.
    if (std::optional<StatePath> level = layout.below(path)) {
      level->pop_back();
      below.state.dicts.insert(*std::move(level));
    }
  }
  below.layout = std::move(layout);
  return below;
}

DType converted_dtype(const TensorEntry& entry, const std::optional<DType>& wanted) {
  if (!wanted || !is_floating(entry.dtype)) return entry.dtype;
  if (!can_convert(entry.dtype, *wanted)) {
    throw Error(ErrorKind::kFailure, fmt::format("tensor '{}' is {}, which cannot be converted to {}",
                                                 entry.name, torch_name(entry.dtype), torch_name(*wanted)));
  }
  return *wanted;
}

SelectedState select_tensors(const Checkpoint& checkpoint, const Selection& selection) {
  SelectedState selected = select_below(checkpoint, chosen_layout(checkpoint, selection.root));
  Globs include("--include", selection.include);
  Globs exclude("--exclude", selection.exclude);
  Renames renames(selection.rename);
  std::map<std::string, std::string> sources;  // Maps a new name to the name in the checkpoint.
  std::vector<OutputItem> chosen;
  for (OutputItem& item : selected.state.tensors) {
    const TensorEntry& entry = checkpoint.tensors()[item.source];
    std::string name = fqn_of(item.path);
    const bool included = include.any(name) || selection.include.empty();
    if (exclude.any(name) || !included) continue;
    if (std::string next = renames.apply(name); next != name) {
      name = std::move(next);
      item.path = StatePath{name};
    }
    const auto [other, fresh] = sources.emplace(name, entry.name);
    if (!fresh) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("'{}' and '{}' would both be called '{}'", other->second, entry.name, name))
          .hint("exclude one of them, or rename it otherwise");
    }
    item.dtype = converted_dtype(entry, selection.dtype);
    chosen.push_back(std::move(item));
  }
  selected.state.tensors = std::move(chosen);
  include.check_all_hit();
  exclude.check_all_hit();
  renames.check_all_hit();
  return selected;
}

}  // namespace accel::ckpt
