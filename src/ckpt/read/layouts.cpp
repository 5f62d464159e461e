#include "ckpt/read/layouts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "base/text.hpp"
#include "ckpt/tensor/convert_dtype.hpp"

namespace accel::ckpt {
namespace {

/// State of a run is looked for to this depth. Deeper, its keys may be those of modules.
constexpr std::size_t kDepth = 3;

// The keys above the weights. What stands beside such a key is not weights. `module` counts if nothing else
// can be weights: a module may have that name.
//
// accel, Accelerate and most loops have `model`. AppState of PyTorch's tutorial (`app.model`, `app.optim`)
// and VeOmni (`state.model`) have it below a key that holds nothing but it and state of the run. Lightning
// has `state_dict`, PyTorch's recipes and FSDP's examples have `model_state_dict`, and DeepSpeed has
// `module`. torchtitan has no key: its weights stand beside `optimizer`, `lr_scheduler`, `dataloader` and
// `train_state`. An optimizer is known by its structure (is_optimizer() below) or its key.
constexpr std::array<std::string_view, 4> kRows = {"model", "state_dict", "model_state_dict", "module"};

/// Keys of other state of a run. They count only for a container without matrices of floating-point numbers.
constexpr std::string_view kRunKeys =
    "callbacks data_loader dataloader extra_state grad_scaler loops lr_scheduler rng rng_state scaler "
    "lr_schedulers scheduler train_dataloader train_state trainer_state training_state";

/// What optimizers of torch, transformers and bitsandbytes keep for a parameter, and Shampoo. They tell an
/// optimizer alone from a module that is called `state`.
constexpr std::string_view kMoments =
    "RMS absmax1 absmax2 acc_delta ax col_var eta exp_avg exp_avg_slow exp_avg_sq exp_avg_sq_col exp_inf "
    "exp_avg_sq_row fp32_param grad_avg master_param max_exp_avg_sq momentum_buffer mu mu_product "
    "preconditioner qmap1 qmap2 row_var square_avg state1 state2 step sum variance";

bool begins_with(const StatePath& path, const StatePath& start) {
  return path.size() > start.size() && std::equal(start.begin(), start.end(), path.begin());
}

StatePath joined(StatePath path, const PathKey& key) {
  path.push_back(key);
  return path;
}

std::string_view text_of(const PathKey& key) {
  const auto* text = std::get_if<std::string>(&key);
  return text == nullptr ? std::string_view() : std::string_view(*text);
}

// The part of a flat name behind its last dot.
std::string_view last_of(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

// Whether the last part of a flat name, or the one in front of it, is what an optimizer keeps: the states of
// torchao are called `exp_avg.codes`, those of Shampoo `preconditioner.0`.
bool is_moment(std::string_view name) {
  const std::string_view last = last_of(name);
  if (has_word(kMoments, last)) return true;
  return last.size() < name.size() &&
         has_word(kMoments, last_of(name.substr(0, name.size() - last.size() - 1)));
}

// Whether a key is one of an optimizer: `optim`, `optimizers`, `optimizer_state_dict`, `optimizer0` and
// `opt_state`, but not `optimal`. A part of a flat name may be that of a module, such as `optimizer_head`.
bool is_optimizer_key(std::string_view key, bool is_flat) {
  if (key.starts_with("opt_state")) return true;
  for (const std::string_view start : {"optimizer", "optim"}) {
    if (!key.starts_with(start)) continue;
    key.remove_prefix(start.size());
    if (key.starts_with('s')) key.remove_prefix(1);
    if (key.empty() || key.starts_with("_state")) return true;
    return is_flat ? is_digits(key) : key.front() < 'a' || key.front() > 'z';
  }
  return false;
}

// The places where the parts of a flat name end, but for the last one.
std::vector<std::size_t> ends_of_parts(std::string_view name) {
  std::vector<std::size_t> ends;
  for (std::size_t at = name.find('.'); at != std::string_view::npos; at = name.find('.', at + 1))
    ends.push_back(at);
  return ends;
}

// Whether a key is `name`, or a flat name that begins with it.
bool is_key(std::string_view key, std::string_view name) {
  return key.starts_with(name) && (key.size() == name.size() || key[name.size()] == '.');
}

// A container of the state dict.
struct Node {
  std::map<PathKey, Node> children;  // The containers in it.
  // Tensors at any depth.
  std::size_t tensors = 0;
  std::size_t moments = 0;     // Tensors that an optimizer could keep, as their last keys tell.
  std::size_t matrices = 0;    // Tensors of floating-point numbers with two dimensions or more.
  std::size_t in_state = 0;    // Tensors under the keys `state` and `param_groups`.
  std::size_t own = 0;         // Tensors that are directly in it.
  std::size_t entries = 0;     // Tensors and objects at any depth.
  bool has_state = false;      // Whether it has the key `state`, or flat names that begin so.
  bool has_groups = false;     // The same for `param_groups`.
  std::size_t weights = 0;     // Tensors at any depth that are neither an optimizer's nor state of the run.
  bool has_optimizer = false;  // Whether an optimizer is below it.
};

bool is_optimizer(const Node& node) {
  if (node.has_groups) return node.has_state || node.in_state == node.tensors;
  return node.has_state && node.tensors > 0 && node.moments == node.tensors && node.in_state == node.tensors;
}

bool is_run_state(const PathKey& key, const Node& node) {
  return has_word(kRunKeys, text_of(key)) && node.matrices == 0;
}

// Whether a container beside the weights may be weights, too.
bool is_module(const PathKey& key, const Node& node) {
  return node.matrices > 0 && !node.has_optimizer && !has_word(kRunKeys, text_of(key));
}

class Finder {
 public:
  explicit Finder(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {
    for (const TensorEntry& entry : checkpoint.tensors()) add(entry.path, &entry);
    for (const ObjectEntry& entry : checkpoint.objects()) add(entry.path, nullptr);
  }

  Layout find(const StatePath& start = {}) {
    Node* node = &top_;
    for (const PathKey& key : start) node = &node->children.at(key);
    count(*node, start);
    look(*node, start);
    // If the caller names the root, nothing below it is guessed.
    if (start.empty() && layout_.candidates.empty() && !layout_.is_optimizer) find_by_name();
    return std::move(layout_);
  }

 private:
  void add(const StatePath& path, const TensorEntry* tensor) {
    check_interrupted();
    const bool may_be_moment = tensor != nullptr && is_moment(tensor->name);
    const bool is_matrix = tensor != nullptr && tensor->shape.size() > 1 && is_floating(tensor->dtype);
    Node* node = &top_;
    for (std::size_t depth = 0; depth < path.size(); ++depth) {
      const std::string_view key = text_of(path[depth]);
      const bool in_state = is_key(key, "state");
      const bool in_groups = is_key(key, "param_groups");
      node->has_state = node->has_state || in_state;
      node->has_groups = node->has_groups || in_groups;
      ++node->entries;
      if (tensor != nullptr) {
        ++node->tensors;
        if (may_be_moment) ++node->moments;
        if (is_matrix) ++node->matrices;
        if (in_state || in_groups) ++node->in_state;
        if (depth + 1 == path.size()) ++node->own;
      }
      if (depth + 1 == path.size()) return;
      node = &node->children[path[depth]];
    }
  }

  // Finds the optimizers, and counts the weights.
  void count(Node& node, const StatePath& path) {
    if (is_optimizer(node)) {
      layout_.optimizers.push_back(path);
      node.has_optimizer = true;
      return;
    }
    node.weights = node.own;
    for (auto& [key, child] : node.children) {
      count(child, joined(path, key));
      node.has_optimizer = node.has_optimizer || child.has_optimizer;
    }
    for (auto& [key, child] : node.children) {
      if (path.size() < kDepth && is_run_state(key, child) && (node.has_optimizer || node.own > 0)) {
        run_state_.push_back(joined(path, key));
        child.weights = 0;
      }
      node.weights += child.weights;
    }
    if (path.empty() || !is_optimizer_key(text_of(path.back()), false)) return;
    // What stands beside optimizers that the structure tells is not weights, either.
    (node.has_optimizer ? run_state_ : layout_.optimizers).push_back(path);
    node.has_optimizer = true;
    node.weights = 0;
  }

  void look(const Node& node, const StatePath& path) {
    layout_.root = path;
    if (node.weights == 0) return look_for_optimizer(node, path);
    std::vector<PathKey> live;
    for (const auto& [key, child] : node.children) {
      if (child.weights > 0) live.push_back(key);
    }
    // Deeper, the keys may be those of modules.
    const bool may_be_row = path.empty() || node.has_optimizer || has_row(node);
    if (const PathKey* key = may_be_row ? key_of_row(node, live) : nullptr) {
      note_rivals(node, path, *key, live);
      const Node& child = node.children.at(*key);
      StatePath below = joined(path, *key);
      if (child.has_optimizer) return look(child, below);
      layout_.root = std::move(below);
      return;
    }
    if (live.size() == 1 && node.own == 0) {
      const Node& child = node.children.at(live.front());
      StatePath below = joined(path, live.front());
      const bool is_root_of_all = path.empty() && child.entries == node.entries;
      if (node.has_optimizer || is_root_of_all || has_row(child)) return look(child, below);
    }
    for (const std::vector<StatePath>* others : {&layout_.optimizers, &run_state_}) {
      for (const StatePath& other : *others) {
        if (begins_with(other, path)) layout_.beside.insert(other);
      }
    }
    if (!layout_.beside.empty()) add_objects_beside(node, path);
  }

  // Beside an optimizer or state of the run, objects are state of the run, too, except for those that a
  // module adds to its state dict.
  void add_objects_beside(const Node& node, const StatePath& path) {
    for (const auto& [key, child] : node.children) {
      if (child.tensors == 0 && !child.has_optimizer) layout_.beside.insert(joined(path, key));
    }
    for (const ObjectEntry& entry : checkpoint_.objects()) {
      if (entry.path.size() == path.size() + 1 && begins_with(entry.path, path) &&
          !last_of(entry.name).starts_with("_extra_state"))
        layout_.beside.insert(entry.path);
    }
  }

  // There are no weights below `path`.
  void look_for_optimizer(const Node& node, const StatePath& path) {
    layout_.is_optimizer = !layout_.optimizers.empty();
    if (layout_.optimizers.size() == 1) {
      layout_.root = layout_.optimizers.front();
    } else if (path.empty() && node.children.size() == 1 &&
               node.children.begin()->second.entries == node.entries) {
      layout_.root = {node.children.begin()->first};
    }
  }

  // The key of a layout that the container has; null if it has none.
  static const PathKey* key_of_row(const Node& node, const std::vector<PathKey>& live) {
    for (const std::string_view row : kRows) {
      const auto found = std::find(live.begin(), live.end(), PathKey(std::string(row)));
      if (found == live.end()) continue;
      const bool alone = live.size() == 1 && node.own == 0;
      if (row != "module" || alone) return &*found;
    }
    return nullptr;
  }

  // Whether all weights in a container are below the key of a layout, or of several.
  static bool has_row(const Node& node) {
    std::size_t weights = 0;
    for (const std::string_view row : kRows) {
      const auto found = node.children.find(std::string(row));
      if (found != node.children.end()) weights += found->second.weights;
    }
    return weights > 0 && weights == node.weights;
  }

  // Notes the sets of weights beside `path`.`key`: those that have a tensor of the same name and shape, such
  // as an exponential moving average, and other modules, such as a head.
  void note_rivals(const Node& node, const StatePath& path, const PathKey& key,
                   const std::vector<PathKey>& live) {
    if (live.size() == 1) return;
    std::map<PathKey, std::set<std::pair<std::string, Dims>>> tensors;
    for (const TensorEntry& entry : checkpoint_.tensors()) {
      if (!begins_with(entry.path, path) || entry.path.size() < path.size() + 2) continue;
      const PathKey& at = entry.path[path.size()];
      if (std::find(live.begin(), live.end(), at) == live.end()) continue;
      const auto begin = entry.path.begin() + static_cast<std::ptrdiff_t>(path.size()) + 1;
      tensors[at].emplace(fqn_of(StatePath(begin, entry.path.end())), entry.shape);
    }
    const auto& chosen = tensors[key];
    const auto add = [&](const PathKey& one) { layout_.candidates.push_back(joined(path, one)); };
    for (const PathKey& other : live) {
      if (other == key) continue;
      const auto& names = tensors[other];
      const bool is_alike =
          std::any_of(names.begin(), names.end(), [&](const auto& name) { return chosen.contains(name); });
      if (!is_alike && !is_module(other, node.children.at(other))) continue;
      if (layout_.candidates.empty()) add(key);
      add(other);
    }
  }

  // Finds the state of optimizers by flat names. What an optimizer keeps for a parameter
  //  - stands below a key of an optimizer, as in `chained_0.optimizer.state.exp_avg.h.0.weight`, or
  //  - is named `state.`, the name of a weight, and more. A parameter cannot be a module, too.
  void find_by_name() {
    std::set<std::string> weights;
    for (const TensorEntry& entry : checkpoint_.tensors()) {
      const std::optional<StatePath> path = layout_.below(entry.path);
      if (path && !has_key_in_name(entry.name)) weights.insert(fqn_of(*path));
    }
    if (weights.empty() && !layout_.by_name.empty()) {
      layout_.by_name.clear();
      layout_.is_optimizer = true;
      return;
    }
    for (const std::string& name : weights) {
      const std::string all = fqn_of(joined(layout_.root, name));
      if (const auto start = state_of_weight(name, weights))
        layout_.by_name.emplace(all, name.substr(0, *start));
    }
    if (layout_.by_name.empty() || !layout_.root.empty()) return;
    for (const ObjectEntry& entry : checkpoint_.objects()) {
      if (layout_.below(entry.path)) (void)has_key_in_name(entry.name);
    }
    add_objects_beside(top_, {});
  }

  // Notes an entry whose flat name has a key of an optimizer. Below a key of weights, it is that of a module.
  bool has_key_in_name(const std::string& name) {
    std::size_t begin = 0;
    for (const std::size_t end : ends_of_parts(layout_.root.empty() ? name : "")) {
      if (is_optimizer_key(std::string_view(name).substr(begin, end - begin), true)) {
        layout_.by_name.emplace(name, name.substr(0, end));
        return true;
      }
      begin = end + 1;
    }
    return false;
  }

  // The length of the text up to `state`, if the name is that of a state of one of `weights`.
  static std::optional<std::size_t> state_of_weight(const std::string& name,
                                                    const std::set<std::string>& weights) {
    const std::vector<std::size_t> ends = ends_of_parts(name);
    for (std::size_t first = 0; first < ends.size(); ++first) {
      const std::size_t begin = first == 0 ? 0 : ends[first - 1] + 1;
      if (name.compare(begin, ends[first] - begin, "state") != 0) continue;
      for (std::size_t last = first + 1; last < ends.size(); ++last) {
        const std::string start = name.substr(0, ends[last]);  // It may be a quantized weight.
        if (weights.contains(start.substr(ends[first] + 1)) && !weights.contains(start)) return ends[first];
      }
    }
    return std::nullopt;
  }

  const Checkpoint& checkpoint_;
  Node top_;
  Layout layout_;
  std::vector<StatePath> run_state_;
};

// The number of keys of `path` that `root` stands for, if at least one more follows.
std::optional<std::size_t> keys_of_root(std::string_view root, const StatePath& path) {
  std::size_t at = 0;
  for (std::size_t depth = 0; depth + 1 < path.size(); ++depth) {
    const std::string key = fqn_of({path[depth]});
    for (const char c : key) {
      const bool is_escaped = root.substr(at).starts_with("\\.");
      if (is_escaped) ++at;
      if (at >= root.size() || root[at] != c) return std::nullopt;
      ++at;
    }
    if (at == root.size()) return depth + 1;
    if (root[at] != '.') return std::nullopt;
    ++at;
  }
  return std::nullopt;
}

// The different paths for which `root` can stand.
std::set<StatePath> paths_of_root(const Checkpoint& checkpoint, std::string_view root) {
  std::set<StatePath> paths;
  for (const TensorEntry& entry : checkpoint.tensors()) {
    if (const auto keys = keys_of_root(root, entry.path))
      paths.emplace(entry.path.begin(), entry.path.begin() + static_cast<std::ptrdiff_t>(*keys));
  }
  return paths;
}

// The optimizer whose flat names begin with `root`, which messages call it; nothing if there is none.
std::optional<Layout> layout_of_part(const Checkpoint& checkpoint, std::string_view root) {
  Layout layout = layout_of(checkpoint);
  const auto is_asked = [root](const auto& entry) { return entry.second == root; };
  if (std::ranges::none_of(layout.by_name, is_asked)) return std::nullopt;
  return Layout{.is_optimizer = true, .by_name = std::move(layout.by_name), .part = std::string(root)};
}

}  // namespace

std::optional<StatePath> Layout::below(const StatePath& path) const {
  if (!begins_with(path, root)) return std::nullopt;
  if (!part.empty()) {
    const auto found = path.size() == 1 ? by_name.find(fqn_of(path)) : by_name.end();
    if (found == by_name.end() || found->second != part) return std::nullopt;
    return StatePath{found->first.substr(part.size() + 1)};
  }
  if (!beside.empty()) {
    StatePath start;
    for (const PathKey& key : path) {
      start.push_back(key);
      if (beside.contains(start)) return std::nullopt;
    }
  }
  if (!by_name.empty() && by_name.contains(fqn_of(path))) return std::nullopt;
  return StatePath(path.begin() + static_cast<std::ptrdiff_t>(root.size()), path.end());
}

std::string Layout::part_of(const StatePath& path) const {
  if (const auto found = by_name.find(fqn_of(path)); found != by_name.end()) return found->second;
  std::size_t keys = 0;
  while (keys < path.size() && keys < root.size() && path[keys] == root[keys]) ++keys;
  const auto end = path.begin() + static_cast<std::ptrdiff_t>(std::min(keys + 1, path.size()));
  return fqn_of(StatePath(path.begin(), end));
}

Layout layout_of(const Checkpoint& checkpoint) { return Finder(checkpoint).find(); }

Layout chosen_layout(const Checkpoint& checkpoint, std::string_view root) {
  StatePath start;
  if (!root.empty()) {
    const std::set<StatePath> paths = paths_of_root(checkpoint, root);
    if (paths.empty()) {
      if (auto part = layout_of_part(checkpoint, root)) return *std::move(part);
      throw Error(ErrorKind::kUsage,
                  fmt::format("'{}' has no tensors under the key '{}'", checkpoint.path().string(), root))
          .hint("accel inspect lists the names");
    }
    if (paths.size() > 1) {
      throw Error(ErrorKind::kUsage, fmt::format("'{}' has {} places that the key '{}' can stand for",
                                                 checkpoint.path().string(), paths.size(), root))
          .hint("write '\\.' for a dot that is part of a key");
    }
    start = *paths.begin();
  }
  Layout layout = Finder(checkpoint).find(start);
  if (layout.candidates.empty()) return layout;
  std::vector<std::string> names;
  for (const StatePath& path : layout.candidates) names.push_back(fmt::format("'{}'", fqn_of(path)));
  throw Error(ErrorKind::kUsage, fmt::format("'{}' holds several sets of weights: {}",
                                             checkpoint.path().string(), fmt::join(names, ", ")))
      .hint(
          fmt::format("'accel merge-weights --root {}' takes one of them", fqn_of(layout.candidates.back())));
}

bool has_root(const Checkpoint& checkpoint, std::string_view root) {
  return !paths_of_root(checkpoint, root).empty();
}

std::optional<Layout> optimizer_layout(const Checkpoint& checkpoint) {
  Layout layout = layout_of(checkpoint);
  if (layout.is_optimizer) return layout;
  if (layout.optimizers.empty()) return std::nullopt;
  Layout own;
  own.root = layout.optimizers.front();
  own.is_optimizer = true;
  for (const StatePath& other : layout.optimizers) {
    // Several optimizers below one key count as one.
    std::size_t same = 0;
    while (same < own.root.size() && same < other.size() && own.root[same] == other[same]) ++same;
    own.root.resize(same);
  }
  own.optimizers = std::move(layout.optimizers);
  if (own.root.empty() || begins_with(layout.root, own.root)) return std::nullopt;
  return own;
}

}  // namespace accel::ckpt
