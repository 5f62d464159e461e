#include "ckpt/select_tensors.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <map>

#include "base/error.hpp"
#include "ckpt/convert_dtype.hpp"

namespace accel::ckpt {
namespace {

bool matches(const std::string& glob, const std::string& name) {
  return ::fnmatch(glob.c_str(), name.c_str(), 0) == 0;
}

// Globs, with a count of what each has matched.
class Globs {
 public:
  Globs(std::string_view flag, const std::vector<std::string>& globs)
      : flag_(flag), globs_(globs), hits_(globs.size(), 0) {}

  bool any(const std::string& name) {
    bool found = false;
    for (std::size_t i = 0; i < globs_.size(); ++i) {
      if (!matches(globs_[i], name)) continue;
      ++hits_[i];
      found = true;
    }
    return found;
  }

  void check_all_hit() const {
    const auto miss = std::find(hits_.begin(), hits_.end(), 0);
    if (miss == hits_.end()) return;
    throw Error(ErrorKind::kUsage, fmt::format("{} '{}' matches no tensor", flag_,
                                               globs_[static_cast<std::size_t>(miss - hits_.begin())]))
        .hint("accel inspect lists the names; quote the pattern, or the shell may expand it");
  }

 private:
  std::string_view flag_;
  const std::vector<std::string>& globs_;
  std::vector<int> hits_;
};

// FROM where a component of the name begins, once: at the front if it is there, else behind the first dot
// that has it.
std::string renamed(const std::string& name, const std::pair<std::string, std::string>& rule) {
  for (std::size_t at = 0; at != std::string::npos && at < name.size();) {
    if (name.compare(at, rule.first.size(), rule.first) == 0) {
      return name.substr(0, at) + rule.second + name.substr(at + rule.first.size());
    }
    at = name.find('.', at);
    if (at != std::string::npos) ++at;
  }
  return name;
}

void check_renames(const Selection& selection, const std::vector<bool>& hit) {
  const auto miss = std::find(hit.begin(), hit.end(), false);
  if (miss == hit.end()) return;
  const auto& rule = selection.rename[static_cast<std::size_t>(miss - hit.begin())];
  throw Error(ErrorKind::kUsage, fmt::format("--rename '{}={}' changes no name", rule.first, rule.second))
      .hint("accel inspect lists the names");
}

DType target_dtype(const TensorEntry& entry, const Selection& selection) {
  if (!selection.dtype || !is_floating(entry.dtype)) return entry.dtype;
  if (!can_convert(entry.dtype, *selection.dtype)) {
    throw Error(ErrorKind::kFailure, fmt::format("tensor '{}' is {}, which cannot become {}", entry.name,
                                                 torch_name(entry.dtype), torch_name(*selection.dtype)));
  }
  return *selection.dtype;
}

}  // namespace

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
    if (path.size() <= depth || (depth == 1 && path.front() != *root))
      return;  // Beside a model is no matter.
    state = state || path[depth] == PathKey("state");
    groups = groups || path[depth] == PathKey("param_groups");
  };
  for (const TensorEntry& entry : checkpoint.tensors()) look(entry.path);
  for (const ObjectEntry& entry : checkpoint.objects()) look(entry.path);
  return state && groups;
}

std::pair<std::string, std::string> parse_rename(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw Error(ErrorKind::kUsage, fmt::format("--rename '{}' is not FROM=TO", text))
        .hint("for example --rename module.= or --rename model.=transformer.");
  }
  return {text.substr(0, equals), text.substr(equals + 1)};
}

SelectedTensors select_tensors(const Checkpoint& checkpoint, const Selection& selection) {
  const std::optional<PathKey> root =
      selection.root.empty() ? state_root(checkpoint) : std::optional<PathKey>(selection.root);
  Globs include("--include", selection.include);
  Globs exclude("--exclude", selection.exclude);
  std::vector<bool> rename_hit(selection.rename.size(), false);
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
    for (std::size_t r = 0; r < selection.rename.size(); ++r) {
      std::string next = renamed(name, selection.rename[r]);
      if (next == name) continue;
      rename_hit[r] = true;
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
  check_renames(selection, rename_hit);
  return selected;
}

}  // namespace accel::ckpt
