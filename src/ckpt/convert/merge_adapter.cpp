#include "ckpt/convert/merge_adapter.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "ckpt/convert/adapter_ties.hpp"
#include "ckpt/plan/safetensors.hpp"
#include "ckpt/read/joined_checkpoint.hpp"
#include "ckpt/tensor/convert_dtype.hpp"

namespace accel::ckpt {
namespace {

constexpr std::string_view kPeftPrefix = "base_model.model.";

/// The matrices that LoRA has for a module, by index into the tensors of the adapter.
struct Layer {
  std::optional<std::size_t> a;
  std::optional<std::size_t> b;
  bool is_embedding = false;
};

/// What an adapter changes of a tensor: it replaces it, adds a product to it, or both.
struct Change {
  std::optional<std::size_t> tensor;
  std::optional<Layer> layer;
};

/// The tensors of an adapter by the modules and tensors of the base model that they belong to.
struct AdapterParts {
  std::map<std::string, Layer> layers;                  ///< The keys are names of modules.
  std::map<std::string, std::size_t> replaced_tensors;  ///< The keys are names of tensors.
};

[[noreturn]] void refuse(const std::string& what, const std::string& advice) {
  throw Error(ErrorKind::kFailure, what).hint(advice);
}

const std::string kMergeInPython =
    "merge it in Python: merge_and_unload() of the PeftModel, then save_pretrained()";

/// Sorts a tensor of LoRA into its layer; false if `name` is not the name of one.
bool add_to_layer(AdapterParts& parts, std::string_view name, std::size_t tensor) {
  struct Ending {
    std::string_view text;
    bool is_b;
    bool is_embedding;
  };
  constexpr std::array<Ending, 4> kEndings = {{{".lora_A.weight", false, false},
                                               {".lora_B.weight", true, false},
                                               {".lora_embedding_A", false, true},
                                               {".lora_embedding_B", true, true}}};
  for (const Ending& ending : kEndings) {
    if (!name.ends_with(ending.text)) continue;
    Layer& layer = parts.layers[std::string(name.substr(0, name.size() - ending.text.size()))];
    std::optional<std::size_t>& matrix = ending.is_b ? layer.b : layer.a;
    if (matrix)
      refuse(fmt::format("tensor '{}' of the adapter is the second one of its kind for its module", name),
             kMergeInPython);
    matrix = tensor;
    layer.is_embedding = ending.is_embedding;
    return true;
  }
  return false;
}

AdapterParts parts_of(const OutputState& adapter) {
  AdapterParts parts;
  for (const OutputItem& item : adapter.tensors) {
    const std::string full = fqn_of(item.path);
    if (!full.starts_with(kPeftPrefix)) {
      refuse(fmt::format("tensor '{}' of the adapter does not begin with '{}', as PEFT's tensors do", full,
                         kPeftPrefix),
             "name the directory of an adapter of PEFT, or the run of a PEFT model");
    }
    std::string name = full.substr(kPeftPrefix.size());
    if (add_to_layer(parts, name, item.source)) continue;
    if (name.find(".lora_") != std::string::npos)
      refuse(fmt::format("tensor '{}' of the adapter is not one of plain LoRA", full), kMergeInPython);
    // A wrapped layer holds the original one as `base_layer`: its bias may be trained, its embedding saved.
    constexpr std::string_view kBaseLayer = ".base_layer.";
    if (const std::size_t at = name.find(kBaseLayer); at != std::string::npos)
      name.replace(at, kBaseLayer.size(), ".");
    const auto [place, is_new] = parts.replaced_tensors.emplace(std::move(name), item.source);
    if (!is_new)
      refuse(fmt::format("the adapter has the tensor '{}' twice, once in a base_layer", place->first),
             kMergeInPython);
  }
  for (const auto& [module, layer] : parts.layers) {
    if (layer.a && layer.b) continue;
    throw Error(ErrorKind::kMissing,
                fmt::format("the adapter has one of the two matrices of '{}' alone", module))
        .hint("it may have been saved without gathering its shards");
  }
  return parts;
}

/// The tensors of the base, by their names. A model's class may put a name in front of those that the base
/// has on disk, or leave one out: GPT2LMHeadModel has `transformer.h`, and the files of GPT-2 have `h`.
class BaseNames {
 public:
  explicit BaseNames(const Checkpoint& base) {
    for (std::size_t i = 0; i < base.tensors().size(); ++i) {
      const std::string& name = base.tensors()[i].name;
      names_.emplace(name, i);
      if (const std::size_t dot = name.find('.'); dot != std::string::npos)
        shortened_.emplace(name.substr(dot + 1), i);
    }
  }

  [[nodiscard]] std::optional<std::size_t> find(const std::string& name) const {
    if (const auto found = names_.find(name); found != names_.end()) return found->second;
    const std::size_t dot = name.find('.');
    if (dot != std::string::npos) {
      if (const auto found = names_.find(name.substr(dot + 1)); found != names_.end()) return found->second;
    }
    if (shortened_.count(name) == 1) return shortened_.find(name)->second;
    return std::nullopt;
  }

 private:
  std::map<std::string, std::size_t> names_;
  std::multimap<std::string, std::size_t> shortened_;  ///< The names without their first component.
};

class Planner {
 public:
  Planner(Checkpoint& base, Checkpoint& adapter, const AdapterConfig& config)
      : base_(base), adapter_(adapter), config_(config), names_(base) {}

  void replace(AdapterMergePlan& plan, const std::string& name, std::size_t tensor) {
    OutputItem& item = plan.state.tensors[place_of(name)];
    const TensorEntry& entry = adapter_.tensors()[tensor];
    if (entry.shape != item.shape) {
      refuse(fmt::format("'{}' is {} in the adapter, but {} in the base", name, to_string(entry.shape),
                         to_string(item.shape)),
             "name the base that the adapter was trained on; a model with a resized vocabulary has to be "
             "saved before it becomes a base");
    }
    if (entry.dtype != item.dtype && !can_convert(entry.dtype, item.dtype)) {
      refuse(fmt::format("'{}' is {} in the adapter, which cannot be converted to {}, as it is in the base",
                         name, torch_name(entry.dtype), torch_name(item.dtype)),
             kMergeInPython);
    }
    claim(replacing_, item, name);
    check_finite(adapter_, tensor, item.dtype);
    item.source = base_.tensors().size() + tensor;
    ++plan.replaced;
  }

  void update(AdapterMergePlan& plan, const std::string& module, const Layer& layer) {
    OutputItem& item = plan.state.tensors[place_of(module + ".weight")];
    if (item.dtype != DType::kFloat32 && item.dtype != DType::kFloat16 && item.dtype != DType::kBFloat16) {
      refuse(fmt::format("the weight of '{}' is {} in the base, and an adapter is added to float32, float16 "
                         "and bfloat16",
                         module, torch_name(item.dtype)),
             "name the base as it was before it was quantized");
    }
    claim(updating_, item, module);
    const TensorEntry& a = matrix(*layer.a);
    const TensorEntry& b = matrix(*layer.b);
    const auto is = [&](std::int64_t rows, std::int64_t columns) {
      return item.shape == Dims{rows, columns} && a.shape[0] == b.shape[1];
    };
    const bool fits = !layer.is_embedding && is(b.shape[0], a.shape[1]);
    const bool fits_transposed = is(a.shape[1], b.shape[0]);
    if (!fits && !fits_transposed) {
      refuse(fmt::format("the weight of '{}' is {} in the base, which the matrices of the adapter, {} and "
                         "{}, do not fit",
                         module, to_string(item.shape), to_string(a.shape), to_string(b.shape)),
             "name the base that the adapter was trained on");
    }
    if (static_cast<double>(a.shape[0]) != config_.rank_of(module)) {
      refuse(fmt::format("the matrices of '{}' have the rank {}, but adapter_config.json says {}", module,
                         a.shape[0], config_.rank_of(module)),
             "take the adapter_config.json that was saved with this adapter");
    }
    item.update = LowRankUpdate{base_.tensors().size() + *layer.a, base_.tensors().size() + *layer.b,
                                config_.scaling_of(module), !fits};
    ++plan.updated;
    if (layer.is_embedding) return;
    Layers& layers = may_be_conv1d(module) ? conv1d_ : linear_;
    if (fits && fits_transposed) {
      layers.square.emplace_back(module, &*item.update);
    } else {
      (fits ? layers.plain : layers.transposed) = module;
    }
  }

  /// Decides whether square weights are transposed, which their shapes do not tell. PEFT notes in the
  /// configuration how the layer was that it wrapped last, which may be of another kind than they.
  void orient_square() {
    const bool last = config_.fan_in_fan_out;
    const bool both = !conv1d_.empty() && !linear_.empty();
    const auto orient = [&](const Layers& layers, std::optional<bool> transposed) {
      const auto& against = transposed.value_or(false) ? layers.plain : layers.transposed;
      if (!layers.square.empty() && (!transposed || against)) refuse_square(layers, against);
      for (const auto& [module, update] : layers.square) update->transposed = *transposed;
    };
    if (!both) {
      orient(conv1d_, last);
      return orient(linear_, last);
    }
    orient(linear_, false);
    if (last || conv1d_.transposed) return orient(conv1d_, true);
    orient(conv1d_, conv1d_.plain ? std::optional(false) : std::nullopt);
  }

  void check_all_placed() const {
    if (missing_.empty()) return;
    refuse(fmt::format("'{}' has no tensor '{}', which the adapter changes{}", base_.path().string(),
                       *missing_.begin(),
                       missing_.size() > 1 ? fmt::format(", and {} others", missing_.size() - 1) : ""),
           "name the base that the adapter was trained on; if it ties the head to the embedding and the "
           "adapter has a head of its own, save the base with an untied head first; if its files have other "
           "names than its modules, merge in Python with merge_and_unload()");
  }

  /// Throws if the adapter changes one of `ends`, which are one tensor in the model, and not the other one
  /// alike. A file has one tensor for both, or transformers drops one of two. PEFT changes both alike with
  /// `ensure_weight_tying`; then the base needs no tensor for the second one.
  void check_ties(const AdapterParts& parts, const std::vector<std::size_t>& ends) {
    std::map<std::string, Change> changes;  // The keys are names of tensors of the adapter.
    std::map<std::size_t, std::string> changed;
    const auto change_of = [&](const std::string& name) -> Change* {
      const std::optional<std::size_t> place = names_.find(name);
      if (place && std::find(ends.begin(), ends.end(), *place) == ends.end()) return nullptr;
      if (place) changed.emplace(*place, name);
      return &changes[name];
    };
    for (const auto& [name, tensor] : parts.replaced_tensors) {
      if (Change* change = change_of(name)) change->tensor = tensor;
    }
    for (const auto& [module, layer] : parts.layers) {
      if (Change* change = change_of(module + ".weight")) change->layer = layer;
    }
    if (changed.empty()) return;
    const auto& [first, first_change] = *changes.begin();
    bool alike = changes.size() > 1 && changed.size() == ends.size();
    for (const auto& [name, change] : changes) alike = alike && are_alike(first, first_change, name, change);
    if (!alike) {
      refuse(fmt::format(
                 "the adapter changes '{}', which is tied {} in the base (tie_word_embeddings), and does "
                 "not change both alike",
                 base_.tensors()[changed.begin()->first].name,
                 ends.size() > 1
                     ? fmt::format("to '{}'", base_.tensors()[other_than(ends, changed.begin()->first)].name)
                     : "to the head"),
             "save the base with a head of its own, and name that: load it in Python, set "
             "model.config.tie_word_embeddings = False and model.lm_head.weight = "
             "torch.nn.Parameter(model.lm_head.weight.clone()), then save_pretrained()");
    }
    for (const auto& [name, change] : changes) missing_.erase(name);
  }

  /// Notes which tensors of the base are missing; check_all_placed() throws.
  [[nodiscard]] bool has_place(const std::string& name) {
    if (names_.find(name)) return true;
    missing_.insert(name);
    return false;
  }

 private:
  /// Layers that the adapter changes, by what the shapes of their weights tell; a name of each kind.
  struct Layers {
    std::optional<std::string> plain;
    std::optional<std::string> transposed;
    std::vector<std::pair<std::string, LowRankUpdate*>> square;

    [[nodiscard]] bool empty() const { return !plain && !transposed && square.empty(); }
  };

  /// Whether transformers has a Conv1D of this name, whose weight is [in, out]. Other models have a Linear.
  static bool may_be_conv1d(std::string_view module) {
    const std::string_view name = module.substr(module.rfind('.') + 1);
    return name == "c_attn" || name == "q_attn" || name == "c_proj" || name == "c_fc";
  }

  /// `against` is a layer of the same kind whose shape speaks against what the configuration tells.
  [[noreturn]] void refuse_square(const Layers& layers, const std::optional<std::string>& against) const {
    const std::string other =
        against ? fmt::format(", and '{}' is {}", *against,
                              against == layers.transposed ? "transposed" : "not transposed")
                : "";
    refuse(fmt::format("it cannot be told whether the square weight of '{}' is transposed: "
                       "adapter_config.json says fan_in_fan_out = {} of the layer that was wrapped last{}",
                       layers.square.front().first, config_.fan_in_fan_out, other),
           kMergeInPython);
  }

  static std::size_t other_than(const std::vector<std::size_t>& ends, std::size_t end) {
    return ends.front() == end ? ends.back() : ends.front();
  }

  [[nodiscard]] bool are_alike(const std::string& name, const Change& one, const std::string& other_name,
                               const Change& other) {
    if (one.tensor.has_value() != other.tensor.has_value() ||
        one.layer.has_value() != other.layer.has_value())
      return false;
    if (one.tensor && !same_values(adapter_, *one.tensor, *other.tensor, /*transposed=*/false)) return false;
    if (!one.layer) return true;
    const auto scaling = [&](const std::string& tensor) {
      return config_.scaling_of(std::string_view(tensor).substr(0, tensor.rfind('.')));
    };
    // An embedding has A as [rank, rows] and B as [columns, rank], a linear as [rank, columns] and [rows,
    // rank].
    const bool crossed = one.layer->is_embedding != other.layer->is_embedding;
    return scaling(name) == scaling(other_name) &&
           same_values(adapter_, *one.layer->a, crossed ? *other.layer->b : *other.layer->a, crossed) &&
           same_values(adapter_, *one.layer->b, crossed ? *other.layer->a : *other.layer->b, crossed);
  }

  [[nodiscard]] std::size_t place_of(const std::string& name) const { return names_.find(name).value(); }

  /// Throws if the adapter has changed `item` in the same way under another name before. Names that differ
  /// in their first component alone may be those of one tensor of the base.
  void claim(std::map<std::string, std::string>& claims, const OutputItem& item, const std::string& name) {
    const auto [before, is_new] = claims.emplace(fqn_of(item.path), name);
    if (is_new) return;
    refuse(fmt::format("'{}' and '{}' of the adapter both change '{}' of the base", before->second, name,
                       before->first),
           "name the base that the adapter was trained on");
  }

  const TensorEntry& matrix(std::size_t tensor) const {
    const TensorEntry& entry = adapter_.tensors()[tensor];
    if (entry.shape.size() != 2) {
      refuse(
          fmt::format("tensor '{}' of the adapter is {}, not a matrix", entry.name, to_string(entry.shape)),
          kMergeInPython);
    }
    if (entry.dtype != DType::kFloat32 && !can_convert(entry.dtype, DType::kFloat32)) {
      refuse(fmt::format("tensor '{}' of the adapter is {}, which cannot be converted to float32", entry.name,
                         torch_name(entry.dtype)),
             kMergeInPython);
    }
    return entry;
  }

  Checkpoint& base_;
  Checkpoint& adapter_;
  const AdapterConfig& config_;
  BaseNames names_;
  std::set<std::string> missing_;
  // The names in the adapter by those of the tensors of the base that they change. The adapter may replace a
  // tensor and add a product to it.
  std::map<std::string, std::string> replacing_;
  std::map<std::string, std::string> updating_;
  Layers conv1d_;  ///< Those that may_be_conv1d().
  Layers linear_;  ///< All others.
};

/// Throws unless the base is safetensors, whose names and files are those of transformers.
void check_base(const Checkpoint& base) {
  if (base.kind() == Kind::kSafetensors || base.kind() == Kind::kSafetensorsSharded) return;
  refuse(fmt::format("'{}' is {}, and an adapter is merged into safetensors", base.path().string(),
                     name_of(base.kind())),
         "accel merge-weights BASE OUT writes it as safetensors");
}

}  // namespace

AdapterMergePlan plan_adapter_merge(Checkpoint& base, Checkpoint& adapter, const MergePlan& merged,
                                    const AdapterConfig& config, std::uint64_t max_shard_bytes) {
  check_base(base);
  const AdapterParts parts = parts_of(merged.state);
  AdapterMergePlan plan;
  plan.names = {"model", ".safetensors"};
  std::vector<std::string> files;
  for (std::size_t i = 0; i < base.tensors().size(); ++i) {
    const TensorEntry& entry = base.tensors()[i];
    plan.state.tensors.push_back({entry.path, i, entry.dtype, entry.shape, std::nullopt});
    const std::vector<std::string> pieces = base.files_of(i).pieces;
    // A tensor without elements has no place; it goes where the one before it is.
    const std::string before = files.empty() ? plan.names.single() : files.back();
    files.push_back(pieces.empty() ? before : pieces.front());
  }
  Planner planner(base, adapter, config);
  for (const auto& [name, tensor] : parts.replaced_tensors) {
    if (planner.has_place(name)) planner.replace(plan, name, tensor);
  }
  for (const auto& [module, layer] : parts.layers) {
    if (planner.has_place(module + ".weight")) planner.update(plan, module, layer);
  }
  planner.check_ties(parts, tied_ends(base));
  planner.check_all_placed();
  planner.orient_square();
  plan.source = join(base, adapter);
  plan.output = max_shard_bytes > 0
                    ? plan_safetensors_files(plan.state, plan.names, max_shard_bytes, base.metadata())
                    : plan_same_safetensors_files(plan.state, plan.names, files, base.metadata());
  return plan;
}

}  // namespace accel::ckpt
