#include "plan/linears/tensor_plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "plan/units/module_repeats.hpp"

namespace accel {
namespace {

struct NamedStyle {
  std::string_view name;
  TensorStyle style;
};

/// The first name of a style is that of name_of().
constexpr auto kStyles = std::to_array<NamedStyle>({
    {"colwise", TensorStyle::kColwise},
    {"colwise_gather_output", TensorStyle::kColwiseGather},
    {"rowwise", TensorStyle::kRowwise},
    {"rowwise_split_input", TensorStyle::kRowwiseSplit},
    {"embedding_rowwise", TensorStyle::kEmbeddingRowwise},
    {"embedding_colwise", TensorStyle::kEmbeddingColwise},
    {"replicated_with_grad_allreduce", TensorStyle::kSummedGradient},
    // Earlier names of transformers, and the classes of torch.
    {"colwise_rep", TensorStyle::kColwiseGather},
    {"rowwise_rep", TensorStyle::kRowwiseSplit},
    {"ColwiseParallel", TensorStyle::kColwise},
    {"RowwiseParallel", TensorStyle::kRowwise},
});

constexpr std::string_view kConfiguredPlan = "'training.parallel.tp_plan'";
constexpr std::string_view kNotedPlan = "the notes of the model file (accel.json, 'tp_plan')";

bool is_embedding(TensorStyle style) {
  return style == TensorStyle::kEmbeddingRowwise || style == TensorStyle::kEmbeddingColwise;
}

/// The dimension by which a style cuts the parameter `name` of its module; absent if it stays whole.
std::optional<std::size_t> cut_dimension(TensorStyle style, std::string_view name) {
  const bool is_weight = name == "weight";
  switch (style) {
    case TensorStyle::kColwise:
    case TensorStyle::kColwiseGather:
      return is_weight || name == "bias" ? std::optional<std::size_t>(0) : std::nullopt;
    case TensorStyle::kEmbeddingRowwise:
      return is_weight ? std::optional<std::size_t>(0) : std::nullopt;
    case TensorStyle::kRowwise:
    case TensorStyle::kRowwiseSplit:
    case TensorStyle::kEmbeddingColwise:
      return is_weight ? std::optional<std::size_t>(1) : std::nullopt;
    case TensorStyle::kSummedGradient:
      break;
  }
  return std::nullopt;
}

/// The path of the module that has the parameter.
std::string_view owner_of(std::string_view fqn) {
  const std::size_t dot = fqn.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : fqn.substr(0, dot);
}

std::string_view last_name(std::string_view fqn) { return fqn.substr(fqn.rfind('.') + 1); }

/// Makes a TensorPlan.
class Planner {
 public:
  Planner(const ModelStructure& model, std::string_view origin, int size)
      : model_(model), origin_(origin), repeats_(model) {
    plan_.size = size;
    plan_.cuts.resize(model.parameters.size());
    plan_.sums_gradient.resize(model.parameters.size());
    for (const ModuleInfo& module : model.modules) names_.insert(module.name);
  }

  /// Gives the style of the rule to the modules that it matches. Returns whether there are any.
  bool apply(const TensorRule& rule) {
    const TensorStyle style = tensor_style(rule.style, rule.pattern, origin_);
    bool is_used = false;
    for (const ModuleInfo& module : model_.modules) {
      if (module.name.empty() || !matches_end(rule.pattern, module.name)) continue;
      is_used = true;
      const TensorStyle own = suited(style, module);
      const auto [entry, is_new] = styles_.try_emplace(repeats_.first_path_of(module.name), own);
      if (is_new || entry->second == own) continue;
      throw Error(ErrorKind::kUsage,
                  fmt::format("{}: '{}' matches module '{}', to which another pattern "
                              "gives the style {}; found {}",
                              origin_, rule.pattern, module.name, name_of(entry->second), name_of(own)))
          .hint("give each module one style");
    }
    return is_used;
  }

  TensorPlan finish() {
    for (const ModuleInfo& module : model_.modules) {
      const auto style = style_of(module.name);
      if (style) plan_.modules.push_back({module.name, *style});
      if (style == TensorStyle::kSummedGradient) summing_.push_back(module.name);
    }
    require_weights();
    for (std::size_t i = 0; i < model_.parameters.size(); ++i) cut(i);
    if (plan_.cut_count() > 0) return std::move(plan_);
    throw Error(ErrorKind::kUsage, fmt::format("{} cuts no parameter of the model", origin_))
        .hint(
            "tensor parallelism that leaves every parameter whole computes the same on all its ranks: name "
            "linears with the styles colwise and rowwise, or set parallelism_config.tp_size to 1");
  }

 private:
  /// The style of torch's classes for an embedding has another name in transformers.
  TensorStyle suited(TensorStyle style, const ModuleInfo& module) const {
    const bool has_table = module.class_name.ends_with("Embedding");
    if (has_table && style == TensorStyle::kRowwise) return TensorStyle::kEmbeddingRowwise;
    const bool suits = style == TensorStyle::kSummedGradient || has_table == is_embedding(style);
    if (suits) return style;
    throw Error(ErrorKind::kUsage, fmt::format("{}: the style {} does not suit module '{}', which is a {}",
                                               origin_, name_of(style), module.name, module.class_name))
        .hint(has_table ? "embeddings have the styles embedding_rowwise and embedding_colwise"
                        : "linears have the styles colwise and rowwise");
  }

  [[nodiscard]] std::optional<TensorStyle> style_of(const std::string& module) const {
    if (!names_.contains(module)) return std::nullopt;  // A list of parameters is not a module.
    const auto found = styles_.find(repeats_.first_path_of(module));
    return found == styles_.end() ? std::nullopt : std::optional(found->second);
  }

  /// Each module whose style cuts must have a weight of its own that can be cut.
  void require_weights() const {
    std::unordered_map<std::string_view, const ParameterInfo*> owned;
    for (const ParameterInfo& parameter : model_.parameters) {
      for (const std::string& fqn : parameter.fqns) owned.emplace(fqn, &parameter);
    }
    for (const TensorModule& module : plan_.modules) {
      if (module.style == TensorStyle::kSummedGradient) continue;
      const auto weight = owned.find(module.module + ".weight");
      if (weight != owned.end() && weight->second->shape.size() == 2) continue;
      throw Error(ErrorKind::kUsage, fmt::format("{} gives module '{}' the style {}, and it has no weight of "
                                                 "two dimensions of its own",
                                                 origin_, module.module, name_of(module.style)))
          .hint("name the linear or the embedding itself");
    }
  }

  /// How `fqn`, one of the names of a parameter, wants it to be cut.
  [[nodiscard]] std::optional<std::size_t> cut_by(const std::string& fqn) const {
    const auto style = style_of(std::string(owner_of(fqn)));
    return style ? cut_dimension(*style, last_name(fqn)) : std::nullopt;
  }

  void cut(std::size_t index) {
    const ParameterInfo& parameter = model_.parameters[index];
    const std::string& first = parameter.fqns.front();
    plan_.cuts[index] = cut_by(first);
    plan_.sums_gradient[index] = sums(first);
    for (const std::string& fqn : parameter.fqns) {
      if (cut_by(fqn) == plan_.cuts[index] && sums(fqn) == plan_.sums_gradient[index]) continue;
      throw Error(ErrorKind::kUsage,
                  fmt::format("{}: '{}' and '{}' are one parameter, which the plan does not cut alike",
                              origin_, first, fqn))
          .hint(
              "an embedding and a head that are tied have the styles embedding_rowwise and "
              "colwise_gather_output; or name neither");
    }
    if (!plan_.cuts[index]) return;
    const std::int64_t whole = parameter.shape.at(*plan_.cuts[index]);
    if (parameter.replicated) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("{} cuts '{}', which fsdp_config.ignored_modules ignores", origin_, first))
          .hint("do not ignore the module, or leave it out of the plan");
    }
    if (whole % plan_.size == 0) return;
    throw Error(ErrorKind::kUsage, fmt::format("{} cuts dimension {} of '{}', whose size {} is not a "
                                               "multiple of parallelism_config.tp_size, {}",
                                               origin_, *plan_.cuts[index], first, whole, plan_.size))
        .hint("choose a tp_size that divides it, or leave the module out of the plan");
  }

  /// Whether the parameter is in a module of the style kSummedGradient.
  [[nodiscard]] bool sums(const std::string& fqn) const {
    return std::any_of(summing_.begin(), summing_.end(),
                       [&](const std::string& module) { return is_inside(fqn, module); });
  }

  const ModelStructure& model_;
  std::string_view origin_;
  ModuleRepeats repeats_;
  std::unordered_set<std::string> names_;
  std::vector<std::string> summing_;                     ///< The modules of the style kSummedGradient.
  std::unordered_map<std::string, TensorStyle> styles_;  ///< By the first path of a module.
  TensorPlan plan_;
};

}  // namespace

std::string_view name_of(TensorStyle style) {
  return std::find_if(kStyles.begin(), kStyles.end(), [&](const NamedStyle& s) { return s.style == style; })
      ->name;
}

TensorStyle tensor_style(std::string_view word, std::string_view pattern, std::string_view origin) {
  std::vector<std::string_view> names;
  for (const NamedStyle& named : kStyles) {
    if (named.name == word) return named.style;
    names.push_back(named.name);
  }
  throw Error(ErrorKind::kUsage,
              fmt::format("{}: '{}' has the style '{}', which is not supported", origin, pattern, word))
      .hint(fmt::format("the styles are {}", fmt::join(names, ", ")));
}

bool matches_end(std::string_view pattern, std::string_view module) {
  while (true) {
    const std::string_view wanted = last_name(pattern);
    if (module.empty() || (wanted != "*" && wanted != last_name(module))) return false;
    if (wanted.size() == pattern.size()) return true;
    pattern = owner_of(pattern);
    module = owner_of(module);
  }
}

std::size_t TensorPlan::cut_count() const {
  return std::count_if(cuts.begin(), cuts.end(), [](const auto& cut) { return cut.has_value(); });
}

std::string TensorPlan::summary() const {
  return fmt::format("{} of {} parameters are cut among {} ranks", cut_count(), cuts.size(), size);
}

TensorPlan plan_tensors(const ModelStructure& model, const std::map<std::string, std::string>& configured,
                        const ModelNotes& notes, int size) {
  if (configured.empty() && notes.tp_plan.empty()) {
    throw Error(
        ErrorKind::kUsage,
        fmt::format("'parallelism_config.tp_size: {}' needs a plan, and the model file has none", size))
        .hint(
            "export the model again with accel-export, which takes the plan of transformers, or set "
            "training.parallel.tp_plan");
  }
  if (configured.empty() && notes.tp_heads > 0 && notes.tp_heads % size != 0) {
    throw Error(ErrorKind::kUsage,
                fmt::format("'parallelism_config.tp_size: {}': the model's plan is for numbers of ranks that "
                            "divide {}, its heads",
                            size, notes.tp_heads))
        .hint("choose such a number");
  }
  Planner planner(model, configured.empty() ? kNotedPlan : kConfiguredPlan, size);
  for (const auto& [pattern, style] : configured) {
    if (planner.apply({pattern, style})) continue;
    std::vector<std::string> names;
    for (const ModuleInfo& module : model.modules) names.push_back(module.name);
    const auto near = nearest(pattern, names);
    throw Error(ErrorKind::kUsage,
                fmt::format("{}: no module of the model matches '{}'", kConfiguredPlan, pattern))
        .hint(near ? fmt::format("the nearest module is '{}'", *near)
                   : "`accel plan --json` lists the modules of a model");
  }
  if (configured.empty()) {
    for (const auto& [pattern, style] : notes.tp_plan) planner.apply({pattern, style});
  }
  return planner.finish();
}

ModelStructure with_tensor_parts(ModelStructure model, const TensorPlan& plan, int rank) {
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    ParameterInfo& parameter = model.parameters[i];
    parameter.sums_gradient = plan.sums_gradient.at(i);
    if (!plan.cuts.at(i)) continue;
    const std::size_t dim = *plan.cuts[i];
    const std::int64_t whole = parameter.shape.at(dim);
    const std::int64_t size = whole / plan.size;
    parameter.part = TensorPart{dim, size * rank, size, whole};
  }
  return model;
}

}  // namespace accel
