#include "ckpt/convert/save.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "ckpt/convert/ties.hpp"
#include "ckpt/pickle/writer.hpp"
#include "ckpt/plan/dcp.hpp"
#include "ckpt/plan/local.hpp"
#include "ckpt/plan/torch.hpp"
#include "ckpt/read/state_root.hpp"
#include "ckpt/store/accelerate_names.hpp"
#include "ckpt/tensor/convert_dtype.hpp"
#include "ckpt/torch/weights_only.hpp"

namespace accel::ckpt {
namespace {

// Of formats with nested dicts, the key that has everything; flat ones have names with dots instead.
std::optional<PathKey> root_of(const Checkpoint& source) {
  if (source.kind() == Kind::kTorchScript) return std::nullopt;
  const std::optional<PathKey> root = state_root(source);
  return root == PathKey("state") ? std::nullopt : root;
}

// Throws Error, with the object's name, if it cannot be pickled.
void check_picklable(const OutputObject& object) {
  try {
    (void)pickle::write(object.value);
  } catch (Error& e) {
    e.add_context(fmt::format("'{}'", fqn_of(object.path)));
    throw std::move(e).hint("--tensors-only leaves out what is not a tensor");
  }
}

// Everything under the root, without it.
OutputState state_of(Checkpoint& source, const SaveOptions& options, SavePlan& plan) {
  const std::optional<PathKey> root = root_of(source);
  const auto outside = [&](const std::string& name) {
    if (options.tensors_only) {
      plan.left_out.push_back(name);
      return;
    }
    throw Error(ErrorKind::kFailure,
                fmt::format("'{}' stands beside the model, where no form of a checkpoint has "
                            "a place for it",
                            name))
        .hint("--tensors-only leaves it out");
  };
  OutputState state;
  for (std::size_t i = 0; i < source.tensors().size(); ++i) {
    const TensorEntry& entry = source.tensors()[i];
    if (std::optional<StatePath> path = below_root(entry.path, root)) {
      state.tensors.push_back({std::move(*path), i, entry.dtype, entry.shape, std::nullopt});
    } else {
      outside(entry.name);
    }
  }
  for (std::size_t i = 0; i < source.objects().size(); ++i) {
    const ObjectEntry& entry = source.objects()[i];
    std::optional<StatePath> path = below_root(entry.path, root);
    if (options.tensors_only) {
      plan.left_out.push_back(entry.name);
    } else if (!path) {
      outside(entry.name);
    } else {
      state.objects.push_back({std::move(*path), source.read_object(i)});
      check_picklable(state.objects.back());
    }
  }
  if (state.tensors.empty() && state.objects.empty()) {
    throw Error(ErrorKind::kMissing, fmt::format("'{}' holds nothing to be saved", source.path().string()));
  }
  return state;
}

void convert(OutputState& state, DType dtype) {
  for (OutputItem& item : state.tensors) {
    if (item.dtype == dtype || !is_floating(item.dtype)) continue;
    if (!can_convert(item.dtype, dtype)) {
      throw Error(ErrorKind::kFailure,
                  fmt::format("'{}' is {}, which cannot be converted to {}", fqn_of(item.path),
                              torch_name(item.dtype), torch_name(dtype)));
    }
    item.dtype = dtype;
  }
}

void add_root(OutputState& state, const std::string& root) {
  for (OutputItem& item : state.tensors) item.path.insert(item.path.begin(), root);
  for (OutputObject& object : state.objects) object.path.insert(object.path.begin(), root);
}

bool all_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// "{base}_rank{R}.bin" and ".json", of any number of ranks.
bool is_rank_file(std::string_view name, const std::string& base) {
  const std::string start = base + "_rank";
  if (!name.starts_with(start)) return false;
  const std::string_view rest = name.substr(start.size());
  const std::size_t dot = rest.find('.');
  return dot != std::string_view::npos && all_digits(rest.substr(0, dot)) &&
         (rest.substr(dot) == ".bin" || rest.substr(dot) == ".json");
}

void check_options(const SaveOptions& options, bool optimizer) {
  if (options.type == SaveType::kFull && options.ranks != 1) {
    throw Error(ErrorKind::kUsage, "a full checkpoint is one file, whatever the number of ranks")
        .hint("leave out --ranks, or choose --type local or sharded");
  }
  if (optimizer && options.type == SaveType::kLocal) {
    throw Error(ErrorKind::kUsage, "an optimizer has no local form")
        .hint("--type sharded is what belongs to a local model, too");
  }
  if (optimizer && options.dtype) {
    throw Error(ErrorKind::kUsage, "--dtype is for models: an optimizer's state would lose its precision");
  }
}

// The objects that a full checkpoint cannot hold make a better message with what to do about it.
OutputFile plan_full(const std::string& name, const OutputState& state) {
  try {
    return plan_torch_file(name, state);
  } catch (Error& e) {
    const bool objects = std::any_of(state.objects.begin(), state.objects.end(),
                                     [](const OutputObject& o) { return !unsafe_part(o.value).empty(); });
    if (objects && e.advice().empty()) throw std::move(e).hint("--tensors-only leaves out what is no tensor");
    throw;
  }
}

}  // namespace

SavePlan plan_save(Checkpoint& source, const SaveOptions& options) {
  SavePlan plan;
  plan.optimizer = is_optimizer(source);
  check_options(options, plan.optimizer);
  plan.state = state_of(source, options, plan);
  if (options.dtype) convert(plan.state, *options.dtype);
  const std::string_view stem = plan.optimizer ? kOptimizerStem : kModelStem;
  const std::string base = file_stem(stem, options.index);
  switch (options.type) {
    case SaveType::kFull:
      mark_shared(source, plan.state);
      plan.output.files.push_back(plan_full(base + ".bin", plan.state));
      plan.belongs = [base](std::string_view name) { return name == base + ".bin"; };
      break;
    case SaveType::kLocal:
      if (!plan.state.objects.empty()) {
        throw Error(ErrorKind::kFailure,
                    fmt::format("a local checkpoint holds tensors only, and '{}' is none",
                                fqn_of(plan.state.objects.front().path)))
            .hint("--tensors-only leaves out what is no tensor");
      }
      mark_shared(source, plan.state);
      plan.output = plan_local(plan.state, options.ranks, base);
      plan.belongs = [base](std::string_view name) { return is_rank_file(name, base); };
      break;
    case SaveType::kSharded:
      add_root(plan.state, plan.optimizer ? "optimizer" : "model");
      plan.folder = sharded_directory(stem, options.index);
      plan.output = plan_dcp(plan.state, options.ranks);
      // What is in the directory of a checkpoint belongs to that checkpoint.
      plan.belongs = [](std::string_view) { return true; };
      break;
  }
  return plan;
}

}  // namespace accel::ckpt
