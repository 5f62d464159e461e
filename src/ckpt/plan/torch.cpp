#include "ckpt/plan/torch.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "ckpt/pickle/writer.hpp"
#include "ckpt/torch/tensor.hpp"
#include "ckpt/torch/weights_only.hpp"

namespace accel::ckpt {
namespace {

// Our reader accepts 200 levels, and the pickles of leaves have levels of their own.
constexpr std::size_t kMostLevels = 150;
constexpr std::size_t kNamed = 10;  // The most objects that an error names.

// One level of the nested state dict, or a leaf of it.
struct Node {
  PathKey key;
  std::vector<std::size_t> children;
  const OutputItem* item = nullptr;
  const OutputObject* object = nullptr;
  bool is_dict = false;  // Whether it is known not to be a list.

  [[nodiscard]] bool is_leaf() const { return item != nullptr || object != nullptr; }
};

struct Step {
  std::size_t parent;
  PathKey key;

  friend bool operator==(const Step&, const Step&) = default;
};

struct StepHash {
  std::size_t operator()(const Step& step) const {
    return std::hash<PathKey>()(step.key) * 31 + std::hash<std::size_t>()(step.parent);
  }
};

// The nested state dict; nodes()[0] is its root. Time and memory are linear in the entries.
class Tree {
 public:
  explicit Tree(const OutputState& state) : nodes_(1) {
    for (const OutputItem& item : state.tensors) leaf_at(item.path).item = &item;
    for (const OutputObject& object : state.objects) leaf_at(object.path).object = &object;
    for (const StatePath& path : state.dicts) mark_dict(path);
    for (const auto& [step, node] : steps_) {
      if (step.key == PathKey("state") && steps_.contains({step.parent, "param_groups"}))
        nodes_[node].is_dict = true;
    }
  }

  [[nodiscard]] const std::vector<Node>& nodes() const { return nodes_; }

 private:
  Node& leaf_at(const StatePath& path) {
    if (path.size() > kMostLevels) {
      throw Error(ErrorKind::kFailure, fmt::format("'{}' is {} levels deep; at most {} can be written",
                                                   fqn_of(path), path.size(), kMostLevels));
    }
    std::size_t at = 0;
    for (const PathKey& key : path) {
      if (nodes_[at].is_leaf()) conflict(path);
      const auto [found, is_new] = steps_.emplace(Step{at, key}, nodes_.size());
      if (is_new) {
        nodes_[at].children.push_back(nodes_.size());
        nodes_.push_back({key, {}});
      }
      at = found->second;
    }
    if (nodes_[at].is_leaf() || !nodes_[at].children.empty()) conflict(path);
    return nodes_[at];
  }

  // What was not selected has no node.
  void mark_dict(const StatePath& path) {
    std::size_t at = 0;
    for (const PathKey& key : path) {
      const auto found = steps_.find(Step{at, key});
      if (found == steps_.end()) return;
      at = found->second;
    }
    nodes_[at].is_dict = true;
  }

  [[noreturn]] static void conflict(const StatePath& path) {
    throw Error(ErrorKind::kFailure,
                fmt::format("'{}' would have to be both a value and a dict, or two values", fqn_of(path)));
  }

  std::vector<Node> nodes_;
  std::unordered_map<Step, std::size_t, StepHash> steps_;
};

// Whether the node is a Python list: its keys are the integers from 0 on, without a hole.
bool is_list(const std::vector<Node>& nodes, const Node& node) {
  if (node.is_dict) return false;
  std::vector<bool> seen(node.children.size(), false);
  for (const std::size_t child : node.children) {
    const auto* index = std::get_if<std::int64_t>(&nodes[child].key);
    if (index == nullptr || *index < 0 || static_cast<std::size_t>(*index) >= seen.size()) return false;
    seen[static_cast<std::size_t>(*index)] = true;
  }
  return !node.children.empty() && std::all_of(seen.begin(), seen.end(), [](bool b) { return b; });
}

// The storages of the archive, and the storage that holds each item.
struct Storages {
  std::vector<std::size_t> of_item;
  std::vector<std::uint64_t> bytes;
  std::vector<OutputContent> contents;
};

Storages storages_of(const OutputState& state) {
  Storages storages;
  storages.of_item.reserve(state.tensors.size());
  for (const OutputItem& item : state.tensors) {
    if (item.tied_to) {
      const OutputItem& first = state.tensors.at(*item.tied_to);
      if (first.dtype == item.dtype && checked_numel(first.shape) == checked_numel(item.shape)) {
        storages.of_item.push_back(storages.of_item.at(*item.tied_to));
        continue;
      }
    }
    storages.of_item.push_back(storages.bytes.size());
    storages.bytes.push_back(checked_nbytes(item.shape, item_bytes(item.dtype)));
    storages.contents.push_back(content_of(item));
  }
  return storages;
}

class StateWriter {
 public:
  StateWriter(const OutputState& state, const Tree& tree, const Storages& storages)
      : state_(state), nodes_(tree.nodes()), storages_(storages) {}

  std::string run() {
    put(nodes_.front());
    return writer_.finish();
  }

 private:
  void put(const Node& node) {
    if (node.item != nullptr) {
      const auto index = static_cast<std::size_t>(node.item - state_.tensors.data());
      writer_.put(
          pickle_of_tensor(node.item->dtype, node.item->shape, std::to_string(storages_.of_item[index])));
    } else if (node.object != nullptr) {
      writer_.put(node.object->value);
    } else if (is_list(nodes_, node)) {
      put_list(node);
    } else {
      writer_.begin_dict();
      for (const std::size_t child : node.children) {
        std::visit([&](const auto& key) { writer_.put(key); }, nodes_[child].key);
        put(nodes_[child]);
      }
      writer_.end_dict();
    }
  }

  void put_list(const Node& node) {
    std::vector<std::size_t> in_order(node.children.size());
    for (const std::size_t child : node.children) {
      in_order[static_cast<std::size_t>(std::get<std::int64_t>(nodes_[child].key))] = child;
    }
    writer_.begin_list();
    for (const std::size_t child : in_order) put(nodes_[child]);
    writer_.end_list();
  }

  const OutputState& state_;
  const std::vector<Node>& nodes_;
  const Storages& storages_;
  pickle::Writer writer_;
};

void check_objects(const OutputState& state) {
  std::vector<std::string> named;
  std::size_t count = 0;
  for (const OutputObject& object : state.objects) {
    const std::string part = unsafe_part(object.value);
    if (part.empty()) continue;
    if (++count <= kNamed) named.push_back(fmt::format("'{}' has {}", fqn_of(object.path), part));
  }
  if (count == 0) return;
  throw Error(ErrorKind::kFailure,
              fmt::format("torch.load(weights_only=True) would refuse {} of the objects: {}{}", count,
                          fmt::join(named, ", "), count > named.size() ? ", ..." : ""));
}

// The items of `shard`, without their ties.
OutputState part_of(const OutputState& state, const std::vector<std::size_t>& shard) {
  OutputState part{{}, {}, state.dicts};
  for (const std::size_t index : shard) {
    part.tensors.push_back(state.tensors[index]);
    part.tensors.back().tied_to.reset();
  }
  return part;
}

}  // namespace

void append_torch_archive(OutputFile& file, std::uint64_t offset, const TorchArchive& archive,
                          std::vector<OutputContent> storages) {
  std::vector<OutputContent> contents;
  contents.reserve(archive.layout().records().size());
  for (std::size_t i = 0; i < archive.layout().records().size(); ++i) {
    const std::optional<std::size_t> storage = archive.storage_of(i);
    contents.push_back(storage ? std::move(storages.at(*storage))
                               : OutputContent(std::string(archive.text_of(i))));
  }
  append_archive(file, offset, archive.layout(), std::move(contents));
}

OutputFile plan_torch_file(std::string name, const OutputState& state) {
  check_torch_dtypes(state);
  check_objects(state);
  Storages storages = storages_of(state);
  std::string pickle = StateWriter(state, Tree(state), storages).run();
  const TorchArchive archive(std::move(pickle), storages.bytes, std::filesystem::path(name).stem().string());
  OutputFile file;
  file.name = std::move(name);
  append_torch_archive(file, 0, archive, std::move(storages.contents));
  return file;
}

OutputPlan plan_torch_files(const OutputState& state, const WeightFiles& names,
                            std::uint64_t max_shard_bytes) {
  const std::vector<std::vector<std::size_t>> shards = split_into_shards(state, max_shard_bytes);
  OutputPlan plan;
  std::map<std::string, std::string> files;
  std::map<std::size_t, std::pair<std::size_t, std::size_t>> places;  // Maps an item to its shard and place.
  std::vector<OutputState> parts;
  for (std::size_t s = 0; s < shards.size(); ++s) {
    parts.push_back(part_of(state, shards[s]));
    for (std::size_t i = 0; i < shards[s].size(); ++i) places[shards[s][i]] = {s, i};
  }
  for (const OutputItem& item : state.tensors) {
    if (!item.tied_to) continue;
    const auto [shard, place] = places.at(*item.tied_to);
    parts[shard].tensors.push_back(item);
    parts[shard].tensors.back().tied_to = place;
  }
  parts.front().objects = state.objects;
  for (std::size_t s = 0; s < parts.size(); ++s) {
    const std::string name = parts.size() == 1 ? names.single() : names.shard(s, parts.size());
    for (const OutputItem& item : parts[s].tensors) files.emplace(fqn_of(item.path), name);
    plan.files.push_back(plan_torch_file(name, parts[s]));
  }
  if (parts.size() > 1) plan.files.push_back(text_file(names.index(), index_json(state, files)));
  return plan;
}

}  // namespace accel::ckpt
