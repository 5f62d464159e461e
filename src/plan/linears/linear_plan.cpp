#include "plan/linears/linear_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>

#include "base/error.hpp"
#include "base/text.hpp"
#include "plan/units/module_repeats.hpp"

namespace accel {
namespace {

/// The sizes of float8 products on a GPU are multiples of this.
constexpr std::int64_t kFloat8Multiple = 16;

constexpr const char* kNoMultiple = "its sizes are not multiples of 16";

/// The shapes of the model's parameters by each of their names.
std::unordered_map<std::string, const std::vector<std::int64_t>*> shapes_of(const ModelStructure& model) {
  std::unordered_map<std::string, const std::vector<std::int64_t>*> shapes;
  for (const ParameterInfo& parameter : model.parameters) {
    for (const std::string& fqn : parameter.fqns) shapes.emplace(fqn, &parameter.shape);
  }
  return shapes;
}

void require_used(const std::vector<std::string>& filter, const std::vector<PlannedLinear>& linears) {
  for (const std::string& word : filter) {
    const auto has_word = [&](const PlannedLinear& l) { return l.module.find(word) != std::string::npos; };
    if (std::any_of(linears.begin(), linears.end(), has_word)) continue;
    std::vector<std::string> names;
    for (const PlannedLinear& linear : linears) names.push_back(linear.module);
    const auto near = nearest(word, names);
    throw Error(
        ErrorKind::kUsage,
        fmt::format("'training.float8.filter': the name of no linear of the model contains '{}'", word))
        .hint(near ? fmt::format("the nearest name is '{}'", *near)
                   : "`accel plan --json` lists the linears of a model");
  }
}

/// The reason of replace_linears(), which no plan without the model's code can find in general.
constexpr const char* kNoProduct = "its code has no product of its weight";

/// The linears whose weight torch.nn.MultiheadAttention uses in its own code.
bool is_out_proj_of_attention(const ModuleInfo& module,
                              const std::unordered_map<std::string, std::string>& classes) {
  if (module.class_name != "NonDynamicallyQuantizableLinear") return false;
  const auto parent = classes.find(parent_of(module.name));
  return parent != classes.end() && parent->second == "MultiheadAttention";
}

std::string reason_of_filter(const std::vector<std::string>& filter, const std::string& module) {
  for (const std::string& word : filter) {
    if (module.find(word) != std::string::npos) return fmt::format("training.float8.filter has '{}'", word);
  }
  return "";
}

/// Applies the choice to the attributes that hold the linears. Each linear of `linears` has been chosen or
/// not by its path alone.
void follow_attributes(std::vector<PlannedLinear>& linears, const ModuleRepeats& repeats) {
  std::unordered_set<std::string> replaced;
  for (const PlannedLinear& linear : linears) {
    if (linear.is_float8() && repeats.is_visited(linear.module))
      replaced.insert(repeats.attribute_of(linear.module));
  }
  for (PlannedLinear& linear : linears) {
    if (replaced.contains(repeats.attribute_of(linear.module))) {
      linear.kept_reason.clear();
    } else if (linear.is_float8()) {
      linear.kept_reason =
          fmt::format("it is another name of '{}', and torchao replaces the first name", linear.repeats);
    }
  }
}

}  // namespace

std::size_t LinearPlan::count() const {
  return std::count_if(linears.begin(), linears.end(),
                       [](const PlannedLinear& linear) { return linear.repeats.empty(); });
}

std::size_t LinearPlan::float8_count() const {
  return std::count_if(linears.begin(), linears.end(), [](const PlannedLinear& linear) {
    return linear.repeats.empty() && linear.is_float8();
  });
}

std::string LinearPlan::summary() const {
  return fmt::format("{} of {} linears compute in float8", float8_count(), count());
}

std::string LinearPlan::warning() const {
  if (float8_count() > 0) return "";
  if (linears.empty()) {
    return "nothing computes in float8: the model has no linears, which are modules whose class name ends "
           "in 'Linear', with a weight of two dimensions (the Conv1D of GPT-2 is another class)";
  }
  return fmt::format("nothing computes in float8: of the model's {} linears none is chosen; '{}': {}",
                     count(), text_of_module(linears.front().module), linears.front().kept_reason);
}

LinearPlan plan_linears(const ModelStructure& model, const config::Float8Config& config) {
  const auto shapes = shapes_of(model);
  const ModuleRepeats repeats(model);
  std::unordered_map<std::string, std::string> classes;
  for (const ModuleInfo& module : model.modules) classes.emplace(module.name, module.class_name);
  LinearPlan plan;
  for (const ModuleInfo& module : model.modules) {
    if (!module.class_name.ends_with("Linear")) continue;
    const auto weight = shapes.find(module.name.empty() ? "weight" : module.name + ".weight");
    if (weight == shapes.end() || weight->second->size() != 2) continue;
    const bool fits = std::all_of(weight->second->begin(), weight->second->end(),
                                  [](std::int64_t size) { return size % kFloat8Multiple == 0; });
    const std::string& first = repeats.first_path_of(module.name);
    const std::string reason = !fits                                       ? kNoMultiple
                               : is_out_proj_of_attention(module, classes) ? kNoProduct
                                                                           : "";
    plan.linears.push_back({module.name, reason, /*repeats=*/first == module.name ? "" : first});
  }
  require_used(config.filter, plan.linears);
  for (PlannedLinear& linear : plan.linears) {
    std::string reason = reason_of_filter(config.filter, linear.module);
    if (!reason.empty()) linear.kept_reason = std::move(reason);
  }
  if (config.filter.empty() && !plan.linears.empty()) {
    const auto last = std::find_if(plan.linears.rbegin(), plan.linears.rend(),
                                   [](const PlannedLinear& linear) { return linear.repeats.empty(); });
    last->kept_reason = "it is the last linear";
    plan.linears.front().kept_reason = "it is the first linear";
  }
  follow_attributes(plan.linears, repeats);
  return plan;
}

}  // namespace accel
