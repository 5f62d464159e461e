#include "ckpt/convert/merge.hpp"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "base/error.hpp"
#include "ckpt/convert/objects_json.hpp"
#include "ckpt/convert/ties.hpp"
#include "ckpt/plan/torch.hpp"
#include "ckpt/read/state_root.hpp"
#include "ckpt/tensor/compare.hpp"
#include "ckpt/tensor/tensor_reader.hpp"

namespace accel::ckpt {
namespace {

OutputFile text_file(std::string name, std::string text) {
  OutputFile file;
  file.name = std::move(name);
  file.bytes = text.size();
  file.segments.push_back({0, text.size(), std::move(text)});
  return file;
}

// The items of `shard`, with ties among themselves only.
OutputState part_of(const OutputState& state, const std::vector<std::size_t>& shard) {
  OutputState part;
  for (const std::size_t index : shard) {
    part.tensors.push_back(state.tensors[index]);
    part.tensors.back().tied_to.reset();
  }
  return part;
}

// torch.save's format keeps ties: a tied tensor goes into the file of the one it is tied to, and shares its
// storage.
OutputPlan plan_torch_files(const OutputState& state, const WeightFiles& names,
                            std::uint64_t max_shard_bytes) {
  const std::vector<std::vector<std::size_t>> shards = split_into_shards(state, max_shard_bytes);
  OutputPlan plan;
  std::map<std::string, std::string> files;
  std::map<std::size_t, std::pair<std::size_t, std::size_t>> places;  // Item: shard, and place in it.
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

// What is no tensor. An optimizer's is kept: nested with the tensors in torch.save's format, else in
// optimizer.json. A model's has no place.
void place_objects(Checkpoint& source, const Selection& selection, MergePlan& plan) {
  const std::optional<PathKey> root =
      selection.root.empty() ? state_root(source) : std::optional<PathKey>(selection.root);
  for (std::size_t i = 0; i < source.objects().size(); ++i) {
    const ObjectEntry& entry = source.objects()[i];
    std::optional<StatePath> path = below_root(entry.path, root);
    if (plan.optimizer && path) {
      plan.state.objects.push_back({std::move(*path), source.read_object(i)});
    } else {
      plan.left_out.push_back(entry.name);
    }
  }
}

// The names in a merged file are flat: a nested dict would be one that nobody asked for.
void flatten(OutputState& state) {
  for (OutputItem& item : state.tensors) item.path = {fqn_of(item.path)};
}

}  // namespace

MergePlan plan_merge(Checkpoint& source, const MergeOptions& options) {
  MergePlan plan;
  plan.optimizer = is_optimizer(source);
  SelectedTensors selected = select_tensors(source, options.selection);
  plan.state = std::move(selected.state);
  plan.left_out = std::move(selected.outside);
  if (plan.state.tensors.empty()) {
    throw Error(ErrorKind::kMissing, fmt::format("'{}' holds no tensors{}", source.path().string(),
                                                 source.tensors().empty() ? "" : " that were chosen"));
  }
  for (const OutputItem& item : plan.state.tensors) source.check_coverage(item.source);
  place_objects(source, options.selection, plan);
  if (!options.keep_tied && !plan.optimizer) mark_ties(source, plan.state);

  const std::string stem = plan.optimizer                 ? "optimizer"
                           : options.unsafe_serialization ? "pytorch_model"
                                                          : "model";
  plan.names = {stem, options.unsafe_serialization ? ".bin" : ".safetensors"};
  if (!plan.optimizer || !options.unsafe_serialization) flatten(plan.state);
  if (options.unsafe_serialization) {
    plan.output = plan_torch_files(plan.state, plan.names, options.max_shard_bytes);
    return plan;
  }
  plan.output = plan_safetensors_files(plan.state, plan.names, options.max_shard_bytes);
  if (plan.optimizer) {
    plan.output.files.insert(plan.output.files.begin(),
                             text_file("optimizer.json", to_json(plan.state.objects)));
  }
  return plan;
}

void check_divergence(Checkpoint& source, const MergePlan& plan) {
  TensorReader reader(source.directory());
  for (const OutputItem& item : plan.state.tensors) {
    if (source.tensors()[item.source].copies == 0) continue;
    check_copies(source.locate(item.source), reader);
  }
}

}  // namespace accel::ckpt
