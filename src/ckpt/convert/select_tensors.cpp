#include "ckpt/convert/select_tensors.hpp"

#include <fmt/format.h>

#include <map>

#include "base/error.hpp"
#include "ckpt/read/name_rules.hpp"
#include "ckpt/read/state_root.hpp"
#include "ckpt/tensor/convert_dtype.hpp"

namespace accel::ckpt {
namespace {

DType target_dtype(const TensorEntry& entry, const Selection& selection) {
  if (!selection.dtype || !is_floating(entry.dtype)) return entry.dtype;
  if (!can_convert(entry.dtype, *selection.dtype)) {
    throw Error(ErrorKind::kFailure, fmt::format("tensor '{}' is {}, which cannot become {}", entry.name,
                                                 torch_name(entry.dtype), torch_name(*selection.dtype)));
  }
  return *selection.dtype;
}

}  // namespace

SelectedTensors select_tensors(const Checkpoint& checkpoint, const Selection& selection) {
  const std::optional<PathKey> root =
      selection.root.empty() ? state_root(checkpoint) : std::optional<PathKey>(selection.root);
  Globs include("--include", selection.include);
  Globs exclude("--exclude", selection.exclude);
  Renames renames(selection.rename);
  std::map<std::string, std::string> sources;  // By the new name.
  SelectedTensors selected;
  for (std::size_t i = 0; i < checkpoint.tensors().size(); ++i) {
    const TensorEntry& entry = checkpoint.tensors()[i];
    std::optional<StatePath> path = below_root(entry.path, root);
    if (!path) {
      selected.outside.push_back(entry.name);
      continue;
    }
    std::string name = fqn_of(*path);
    const bool included = include.any(name) || selection.include.empty();
    if (exclude.any(name) || !included) continue;
    if (std::string next = renames.apply(name); next != name) {
      name = std::move(next);
      path = StatePath{name};
    }
    const auto [other, fresh] = sources.emplace(name, entry.name);
    if (!fresh) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("'{}' and '{}' would both be called '{}'", other->second, entry.name, name))
          .hint("exclude one of them, or rename it otherwise");
    }
    selected.state.tensors.push_back(
        {std::move(*path), i, target_dtype(entry, selection), entry.shape, std::nullopt});
  }
  if (!selection.root.empty() && selected.outside.size() == checkpoint.tensors().size()) {
    throw Error(ErrorKind::kUsage, fmt::format("'{}' has no tensors under the key '{}'",
                                               checkpoint.path().string(), selection.root))
        .hint("accel inspect lists the names");
  }
  include.check_all_hit();
  exclude.check_all_hit();
  renames.check_all_hit();
  return selected;
}

}  // namespace accel::ckpt
