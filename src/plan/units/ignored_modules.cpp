#include "plan/units/ignored_modules.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/name_pattern.hpp"
#include "base/text.hpp"

namespace accel {
namespace {

constexpr std::size_t kMostNames = 8;

/// Names of which the pattern matches a part; else the nearest name; else the first names.
std::vector<std::string> names_near(const ModelStructure& model, const std::string& text) {
  const NamePattern pattern(text);
  std::vector<std::string> names;
  std::vector<std::string> found;
  for (const ModuleInfo& module : model.modules) {
    if (module.name.empty()) continue;
    names.push_back(module.name);
    if (pattern.is_found_in(module.name)) found.push_back(module.name);
  }
  if (found.empty()) {
    if (const auto near = nearest(text, names)) return {*near};
    found = std::move(names);
  }
  if (found.size() > kMostNames) {
    found.resize(kMostNames);
    found.emplace_back("...");
  }
  return found;
}

/// Whether one of the parameter's names is in an ignored module.
bool is_inside(const ParameterInfo& parameter, const std::vector<std::string>& modules) {
  return std::any_of(parameter.fqns.begin(), parameter.fqns.end(), [&](const std::string& fqn) {
    const std::string owner = fqn.substr(0, fqn.rfind('.') == std::string::npos ? 0 : fqn.rfind('.'));
    return std::binary_search(modules.begin(), modules.end(), owner);
  });
}

}  // namespace

ModelStructure with_ignored(ModelStructure model, const std::string& pattern, const std::string& origin) {
  if (pattern.empty()) return model;
  const NamePattern ignored(pattern);
  std::vector<std::string> names;  // The names of ignored modules and of all modules inside them.
  std::string outer;               // The last ignored module; in pre-order the modules inside it follow it.
  bool inside = false;
  for (ModuleInfo& module : model.modules) {
    inside = inside && (outer.empty() || module.name.starts_with(outer + "."));
    if (!inside && ignored.matches(module.name)) {
      outer = module.name;
      inside = true;
    }
    module.ignored = inside;
    if (inside) names.push_back(module.name);
  }
  if (names.empty()) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{}: '{}' matches the full name of no module", origin, pattern))
        .hint(fmt::format("names near it: {}", fmt::join(names_near(model, pattern), ", ")));
  }
  std::sort(names.begin(), names.end());
  for (ParameterInfo& parameter : model.parameters) parameter.replicated = is_inside(parameter, names);
  return model;
}

std::vector<std::string> ignored_beside(const ModelStructure& model, std::string_view dtype) {
  std::vector<std::string> modules;
  for (const ParameterInfo& parameter : model.parameters) {
    const std::string_view computes = parameter.requires_grad ? "float32" : std::string_view(parameter.dtype);
    if (!parameter.replicated || computes == dtype || computes.find("float") == std::string_view::npos)
      continue;
    const std::string& name = parameter.fqns.front();
    const std::size_t dot = name.rfind('.');
    std::string module = dot == std::string::npos ? "(root)" : name.substr(0, dot);
    if (std::find(modules.begin(), modules.end(), module) == modules.end())
      modules.push_back(std::move(module));
  }
  return modules;
}

}  // namespace accel
