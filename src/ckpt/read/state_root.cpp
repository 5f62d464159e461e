#include "ckpt/read/state_root.hpp"

namespace accel::ckpt {

std::optional<PathKey> state_root(const Checkpoint& checkpoint) {
  std::optional<PathKey> root;
  bool common = true;
  bool has_model = false;
  const auto look = [&](const StatePath& path) {
    if (path.size() < 2) {
      common = false;
      return;
    }
    if (!root) root = path.front();
    common = common && *root == path.front();
    has_model = has_model || path.front() == PathKey("model");
  };
  for (const TensorEntry& entry : checkpoint.tensors()) look(entry.path);
  for (const ObjectEntry& entry : checkpoint.objects()) look(entry.path);
  if (common) return root;
  return has_model ? std::optional<PathKey>("model") : std::nullopt;
}

std::optional<StatePath> below_root(const StatePath& path, const std::optional<PathKey>& root) {
  if (!root) return path;
  if (path.size() < 2 || path.front() != *root) return std::nullopt;
  return StatePath(path.begin() + 1, path.end());
}

bool is_optimizer(const Checkpoint& checkpoint) {
  const std::optional<PathKey> root = state_root(checkpoint);
  if (root == PathKey("optimizer")) return true;
  const std::size_t depth = root && *root != PathKey("state") ? 1 : 0;
  bool state = false;
  bool groups = false;
  const auto look = [&](const StatePath& path) {
    // What stands beside the root does not count.
    if (path.size() <= depth || (depth == 1 && path.front() != *root)) return;
    state = state || path[depth] == PathKey("state");
    groups = groups || path[depth] == PathKey("param_groups");
  };
  for (const TensorEntry& entry : checkpoint.tensors()) look(entry.path);
  for (const ObjectEntry& entry : checkpoint.objects()) look(entry.path);
  return state && groups;
}

}  // namespace accel::ckpt
