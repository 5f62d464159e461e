#include "plan/units/module_repeats.hpp"

#include <fmt/format.h>

#include <cstddef>

namespace accel {
namespace {

/// The parameters of each module with their names inside it, as text that is equal for equal modules.
std::unordered_map<std::string, std::string> parameters_by_module(const ModelStructure& model) {
  std::unordered_map<std::string, std::string> parameters;
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    for (const std::string& fqn : model.parameters[i].fqns) {
      std::string module = fqn;
      do {
        module = parent_of(module);
        const std::size_t inner = module.empty() ? 0 : module.size() + 1;
        parameters[module] += fmt::format("{} {}\n", fqn.substr(inner), i);
      } while (!module.empty());
    }
  }
  return parameters;
}

}  // namespace

std::string parent_of(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

ModuleRepeats::ModuleRepeats(const ModelStructure& model) {
  const auto parameters = parameters_by_module(model);
  std::unordered_map<std::string, std::string> first_with;  // Maps a class and its parameters to a path.
  std::unordered_set<std::string> children;                 // Parents, each with the first path of a child.
  for (const ModuleInfo& module : model.modules) {
    const auto own = parameters.find(module.name);
    const std::string key = own == parameters.end() ? "" : module.class_name + '\n' + own->second;
    const std::string& first =
        key.empty() ? module.name : first_with.try_emplace(key, module.name).first->second;
    first_[module.name] = first;
    if (module.name.empty()) continue;
    const std::string parent = parent_of(module.name);
    const bool is_new = children.insert(parent + '\n' + first).second;
    if (!is_new || left_out_.contains(parent)) left_out_.insert(module.name);
  }
}

std::string ModuleRepeats::attribute_of(const std::string& path) const {
  const std::string parent = parent_of(path);
  const auto first = first_.find(parent);
  return (first == first_.end() ? parent : first->second) + '\n' +
         path.substr(parent.empty() ? 0 : parent.size() + 1);
}

}  // namespace accel
