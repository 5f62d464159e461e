#include "plan/memory/autocast_copies.hpp"

#include <algorithm>
#include <string_view>

#include "base/checked.hpp"

namespace accel {
namespace {

struct ParameterName {
  std::string module;
  std::string_view last;
};

ParameterName split(std::string_view fqn) {
  const std::size_t dot = fqn.rfind('.');
  if (dot == std::string_view::npos) return {"", fqn};
  return {std::string(fqn.substr(0, dot)), fqn.substr(dot + 1)};
}

// Autocast casts neither integers nor 64-bit floats.
bool is_eligible(std::string_view dtype) {
  return dtype == "float32" || dtype == "float16" || dtype == "bfloat16";
}

}  // namespace

std::unordered_set<std::string> lookup_modules(const ModelStructure& model) {
  std::unordered_set<std::string> modules;
  for (const ModuleInfo& module : model.modules) {
    if (module.class_name.ends_with("Embedding") || module.class_name == "EmbeddingBag")
      modules.insert(module.name);
  }
  return modules;
}

std::unordered_set<std::string> names_without_cast(const ModelStructure& model) {
  const std::unordered_set<std::string> tables = lookup_modules(model);
  std::unordered_set<std::string> batch_norms;
  for (const ModuleInfo& module : model.modules) {
    if (is_batch_norm(module)) batch_norms.insert(module.name);
  }
  std::unordered_set<std::string> names;
  for (const ParameterInfo& parameter : model.parameters) {
    const bool may_be_table = !parameter.cross_unit && parameter.shape.size() == 2;
    for (const std::string& fqn : parameter.fqns) {
      const ParameterName name = split(fqn);
      const bool is_table = may_be_table && name.last == "weight" && tables.contains(name.module);
      if (is_table || batch_norms.contains(name.module)) names.insert(fqn);
    }
  }
  return names;
}

std::int64_t autocast_copies(const BufferPlan& buffer, const FlatParameter& parameter,
                             const config::PrecisionConfig& precision,
                             const std::unordered_set<std::string>& names_without_cast) {
  if (precision.autocast_dtype.empty() || buffer.compute_dtype == precision.autocast_dtype) return 0;
  if (!is_eligible(buffer.compute_dtype)) return 0;
  const std::vector<std::string>& fqns = parameter.spec.fqns;
  const std::int64_t uses = std::count_if(
      fqns.begin(), fqns.end(), [&](const std::string& fqn) { return !names_without_cast.contains(fqn); });
  return buffer.trainable ? std::min<std::int64_t>(uses, 1) : uses;
}

std::uint64_t autocast_bytes(const BufferPlan& buffer, const config::PrecisionConfig& precision,
                             const std::unordered_set<std::string>& names_without_cast) {
  constexpr std::int64_t kItemBytes = 2;
  std::int64_t bytes = 0;
  for (const FlatParameter& parameter : buffer.layout.parameters) {
    const std::int64_t copies = autocast_copies(buffer, parameter, precision, names_without_cast);
    bytes = checked_add(bytes, checked_mul(checked_mul(parameter.numel, kItemBytes), copies));
  }
  return static_cast<std::uint64_t>(bytes);
}

}  // namespace accel
