#include "plan/units/wrap_policy.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>

#include "base/checked.hpp"
#include "base/error.hpp"

namespace accel {
namespace {

std::int64_t numel_of(const ParameterInfo& parameter) {
  std::int64_t numel = 1;
  for (const std::int64_t dim : parameter.shape) numel = checked_mul(numel, dim);
  return numel;
}

// Containers have no forward that could gather parameters.
bool is_container(const ModuleInfo& module) {
  return module.class_name == "ModuleList" || module.class_name == "ModuleDict";
}

std::vector<std::string> by_class(const ModelStructure& model, const config::FsdpConfig& config) {
  const std::vector<std::string>& classes = config.transformer_layer_cls_to_wrap;
  if (classes.empty()) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{}: fsdp_transformer_layer_cls_to_wrap is not set, and the model file does not "
                            "name layer classes",
                            config.wrap_origin))
        .hint("list the class names of the layers, separated by commas");
  }
  std::set<std::string> there;
  for (const ModuleInfo& module : model.modules) there.insert(module.class_name);
  for (const std::string& name : classes) {
    if (there.contains(name)) continue;
    throw Error(ErrorKind::kUsage,
                fmt::format("{}: no module of class '{}' in the model", config.wrap_origin, name))
        .hint(fmt::format("the model's classes are {}", fmt::join(there, ", ")));
  }
  std::vector<std::string> names;
  for (const ModuleInfo& module : model.modules) {
    if (module.name.empty() || module.ignored) continue;
    if (std::find(classes.begin(), classes.end(), module.class_name) != classes.end())
      names.push_back(module.name);
  }
  return names;
}

// The policy SIZE_BASED_WRAP. Modules are in pre-order: the modules inside a module follow it.
class SizePolicy {
 public:
  SizePolicy(const ModelStructure& model, std::int64_t least, bool without_ignored)
      : model_(model), least_(least) {
    sizes_.reserve(model.modules.size());
    for (const ModuleInfo& module : model.modules) sizes_.push_back(size_of(module.name, without_ignored));
  }

  std::vector<std::string> version_2() {
    picked_.assign(model_.modules.size(), false);
    for (std::size_t i = 1; i < model_.modules.size(); ++i) {
      picked_[i] = sizes_[i] > least_ && !is_container(model_.modules[i]) && !model_.modules[i].ignored;
    }
    return names();
  }

  std::vector<std::string> version_1() {
    picked_.assign(model_.modules.size(), false);
    if (!model_.modules.empty()) wrap_below(0);
    return names();
  }

 private:
  std::int64_t size_of(const std::string& module, bool without_ignored) const {
    std::int64_t size = 0;
    for (const ParameterInfo& parameter : model_.parameters) {
      const bool has = std::any_of(parameter.fqns.begin(), parameter.fqns.end(),
                                   [&](const std::string& fqn) { return is_inside(fqn, module); });
      // Version 2 counts replicated parameters, too.
      if (has && !(without_ignored && parameter.replicated)) size = checked_add(size, numel_of(parameter));
    }
    return size;
  }

  // The index of the first module after `index` that is not inside it.
  std::size_t end_of(std::size_t index) const {
    std::size_t end = index + 1;
    while (end < model_.modules.size() && is_inside(model_.modules[end].name, model_.modules[index].name))
      ++end;
    return end;
  }

  // Wraps modules inside `index` and returns the number of elements in them.
  std::int64_t wrap_below(std::size_t index) {
    std::int64_t wrapped = 0;
    const std::size_t end = end_of(index);
    for (std::size_t child = index + 1; child < end; child = end_of(child)) {
      wrapped = checked_add(wrapped, wrap(child));
    }
    return wrapped;
  }

  std::int64_t wrap(std::size_t index) {
    const ModuleInfo& module = model_.modules[index];
    if (sizes_[index] < least_ || module.class_name == "MultiheadAttention" || module.ignored) return 0;
    const std::int64_t wrapped = wrap_below(index);
    if (sizes_[index] - wrapped < least_ || is_container(module)) return wrapped;
    picked_[index] = true;
    return sizes_[index];
  }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < picked_.size(); ++i) {
      if (picked_[i]) names.push_back(model_.modules[i].name);
    }
    return names;
  }

  const ModelStructure& model_;
  std::int64_t least_;
  std::vector<std::int64_t> sizes_;  // One size for each module.
  std::vector<bool> picked_;
};

}  // namespace

std::vector<std::string> wrapped_modules(const ModelStructure& model, const config::FsdpConfig& config) {
  switch (config.auto_wrap_policy) {
    case config::WrapPolicy::kNone:
      return {};
    case config::WrapPolicy::kTransformer:
      return by_class(model, config);
    case config::WrapPolicy::kSize:
      break;
  }
  if (config.min_num_params == 0) return {};
  SizePolicy policy(model, config.min_num_params, /*without_ignored=*/config.version == 1);
  return config.version == 1 ? policy.version_1() : policy.version_2();
}

}  // namespace accel
