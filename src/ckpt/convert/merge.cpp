#include "ckpt/convert/merge.hpp"

#include <fmt/format.h>

#include <map>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "ckpt/convert/objects_json.hpp"
#include "ckpt/convert/ties.hpp"
#include "ckpt/plan/safetensors.hpp"
#include "ckpt/plan/torch.hpp"
#include "ckpt/store/adapter_names.hpp"
#include "ckpt/tensor/compare.hpp"
#include "ckpt/tensor/tensor_reader.hpp"

namespace accel::ckpt {
namespace {

// An optimizer's objects are kept: nested with the tensors in torch.save's format, else in optimizer.json.
// The files of a model's weights have no place for objects.
void place_objects(Checkpoint& source, std::vector<SelectedObject> objects, MergePlan& plan) {
  for (SelectedObject& object : objects) {
    if (plan.optimizer) {
      plan.state.objects.push_back({std::move(object.path), source.read_object(object.source)});
    } else {
      plan.left_out.push_back(source.objects()[object.source].name);
    }
  }
}

// The names in a merged file are flat, also where the source has nested dicts.
void flatten(OutputState& state) {
  for (OutputItem& item : state.tensors) item.path = {fqn_of(item.path)};
}

// Gives the tensors of an adapter the names that PEFT has in files, and leaves out the originals of the
// modules that were trained whole, which the base model has.
void name_as_peft(const Checkpoint& source, MergePlan& plan) {
  LayoutPart originals{"*.original_module.*", 0, 0};
  std::erase_if(plan.state.tensors, [&](const OutputItem& item) {
    if (!is_original_module(fqn_of(item.path))) return false;
    ++originals.tensors;
    plan.left_out.push_back(source.tensors()[item.source].name);
    return true;
  });
  if (originals.tensors > 0) plan.parts_left_out.push_back(originals);
  std::map<std::string, std::string> names;  // Maps a name in the file to that in the checkpoint.
  for (OutputItem& item : plan.state.tensors) {
    const std::string& own = source.tensors()[item.source].name;
    std::string name = adapter_file_name(fqn_of(item.path));
    const auto [other, fresh] = names.emplace(name, own);
    if (!fresh) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("'{}' and '{}' would both be called '{}', as PEFT names them", other->second,
                              own, name))
          .hint("exclude one of them");
    }
    if (name != fqn_of(item.path)) item.path = {std::move(name)};
  }
}

bool is_adapter(const OutputState& state) {
  std::vector<std::string> names;
  for (const OutputItem& item : state.tensors) names.push_back(fqn_of(item.path));
  return are_adapter(names);
}

}  // namespace

MergePlan plan_merge(Checkpoint& source, const MergeOptions& options) {
  MergePlan plan;
  SelectedState selected = select_tensors(source, options.selection);
  plan.optimizer = selected.layout.is_optimizer;
  plan.parts_left_out =
      left_out_parts(source, selected.layout, plan.optimizer ? Objects::kTaken : Objects::kLeftOut);
  plan.state = std::move(selected.state);
  plan.left_out = std::move(selected.outside);
  plan.left_out.insert(plan.left_out.end(), selected.outside_objects.begin(), selected.outside_objects.end());
  if (plan.state.tensors.empty()) {
    throw Error(ErrorKind::kMissing, fmt::format("'{}' holds no tensors{}", source.path().string(),
                                                 source.tensors().empty() ? "" : " that were chosen"));
  }
  for (const OutputItem& item : plan.state.tensors) source.check_coverage(item.source);
  place_objects(source, std::move(selected.objects), plan);
  const bool adapter = !plan.optimizer && options.is_adapter.value_or(is_adapter(plan.state));
  if (adapter && options.max_shard_bytes > 0) {
    throw Error(ErrorKind::kUsage, "an adapter cannot be split into shards: PEFT reads it from one file")
        .hint("leave out --max-shard-size");
  }
  if (adapter) name_as_peft(source, plan);
  if (options.keep_tied && options.drop_equal) {
    throw Error(ErrorKind::kUsage, "--keep-tied writes every tensor, and --drop-equal leaves some out")
        .hint("leave out one of the two");
  }
  if (!options.keep_tied && !adapter && !plan.optimizer)
    mark_ties(source, plan.state, options.drop_equal ? EqualTensors::kDropped : EqualTensors::kKept);

  const std::string stem = plan.optimizer                 ? "optimizer"
                           : adapter                      ? std::string(kAdapterStem)
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
