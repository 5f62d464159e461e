#include "ckpt/convert/save.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "ckpt/convert/select_tensors.hpp"
#include "ckpt/convert/ties.hpp"
#include "ckpt/pickle/writer.hpp"
#include "ckpt/plan/dcp.hpp"
#include "ckpt/plan/local.hpp"
#include "ckpt/plan/torch.hpp"
#include "ckpt/store/accelerate_names.hpp"
#include "ckpt/torch/weights_only.hpp"

namespace accel::ckpt {
namespace {

// Throws Error, with the object's name, if it cannot be pickled.
void check_picklable(const OutputObject& object) {
  try {
    (void)pickle::write(object.value);
  } catch (Error& e) {
    e.add_context(fmt::format("'{}'", fqn_of(object.path)));
    throw std::move(e).hint("--tensors-only leaves out what is not a tensor");
  }
}

// Everything that the layout takes, without the root key.
OutputState state_of(Checkpoint& source, const SaveOptions& options, const Layout& layout, SavePlan& plan) {
  SelectedState selected = select_below(source, layout);
  std::vector<std::string>& outside = selected.outside;
  outside.insert(outside.end(), selected.outside_objects.begin(), selected.outside_objects.end());
  plan.parts_left_out =
      left_out_parts(source, layout, options.tensors_only ? Objects::kLeftOut : Objects::kTaken);
  plan.left_out = std::move(outside);
  OutputState state = std::move(selected.state);
  for (OutputItem& item : state.tensors) {
    item.dtype = converted_dtype(source.tensors()[item.source], options.dtype);
  }
  for (SelectedObject& object : selected.objects) {
    if (options.tensors_only) {
      plan.left_out.push_back(source.objects()[object.source].name);
    } else {
      state.objects.push_back({std::move(object.path), source.read_object(object.source)});
      check_picklable(state.objects.back());
    }
  }
  if (state.tensors.empty() && state.objects.empty()) {
    throw Error(ErrorKind::kMissing, fmt::format("'{}' has nothing to save", source.path().string()));
  }
  return state;
}

void add_root(OutputState& state, const std::string& root) {
  for (OutputItem& item : state.tensors) item.path.insert(item.path.begin(), root);
  for (OutputObject& object : state.objects) object.path.insert(object.path.begin(), root);
}

// "{base}_rank{R}.bin" and ".json", of any number of ranks.
bool is_rank_file(std::string_view name, const std::string& base) {
  const std::string start = base + "_rank";
  if (!name.starts_with(start)) return false;
  const std::string_view rest = name.substr(start.size());
  const std::size_t dot = rest.find('.');
  return dot != std::string_view::npos && is_digits(rest.substr(0, dot)) &&
         (rest.substr(dot) == ".bin" || rest.substr(dot) == ".json");
}

void check_options(const SaveOptions& options, bool optimizer) {
  if (options.type == SaveType::kFull && options.ranks != 1) {
    throw Error(ErrorKind::kUsage, "a full checkpoint is one file, whatever the number of ranks")
        .hint("leave out --ranks, or choose --type local or sharded");
  }
  if (optimizer && options.type == SaveType::kLocal) {
    throw Error(ErrorKind::kUsage, "an optimizer has no local form")
        .hint("choose --type sharded, which goes with a local model, too");
  }
  if (optimizer && options.dtype) {
    throw Error(ErrorKind::kUsage, "--dtype is for models: an optimizer's state would lose its precision");
  }
}

// Adds a hint to the error about objects that a full checkpoint cannot hold.
OutputFile plan_full(const std::string& name, const OutputState& state) {
  try {
    return plan_torch_file(name, state);
  } catch (Error& e) {
    const bool objects = std::any_of(state.objects.begin(), state.objects.end(),
                                     [](const OutputObject& o) { return !unsafe_part(o.value).empty(); });
    if (objects && e.advice().empty())
      throw std::move(e).hint("--tensors-only leaves out what is not a tensor");
    throw;
  }
}

void mark_known_ties(Checkpoint& source, OutputState& state, const SaveOptions& options) {
  mark_ties(source, state, EqualTensors::kKept);
  mark_recorded(source, state, groups_of(source.tensors(), options.tied));
}

}  // namespace

SavePlan plan_save(Checkpoint& source, const SaveOptions& options) {
  SavePlan plan;
  const Layout layout = chosen_layout(source, options.root);
  plan.optimizer = layout.is_optimizer;
  check_options(options, plan.optimizer);
  plan.state = state_of(source, options, layout, plan);
  const std::string_view stem = plan.optimizer ? kOptimizerStem : kModelStem;
  const std::string base = file_stem(stem, options.index);
  switch (options.type) {
    case SaveType::kFull:
      mark_known_ties(source, plan.state, options);
      plan.output.files.push_back(plan_full(base + ".bin", plan.state));
      plan.belongs = [base](std::string_view name) { return name == base + ".bin"; };
      break;
    case SaveType::kLocal:
      if (!plan.state.objects.empty()) {
        throw Error(ErrorKind::kFailure,
                    fmt::format("a local checkpoint holds only tensors, and '{}' is not a tensor",
                                fqn_of(plan.state.objects.front().path)))
            .hint("--tensors-only leaves out what is not a tensor");
      }
      mark_known_ties(source, plan.state, options);
      plan.output = plan_local(plan.state, options.ranks, base);
      plan.belongs = [base](std::string_view name) { return is_rank_file(name, base); };
      break;
    case SaveType::kSharded:
      add_root(plan.state, plan.optimizer ? "optimizer" : "model");
      plan.folder = sharded_directory(stem, options.index);
      plan.output = plan_dcp(plan.state, options.ranks);
      // Everything in the directory of a sharded checkpoint belongs to that checkpoint.
      plan.belongs = [](std::string_view) { return true; };
      break;
  }
  return plan;
}

}  // namespace accel::ckpt
