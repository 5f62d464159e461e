#include "structure/layer_guess.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string_view>

#include "base/checked.hpp"

namespace accel {
namespace {

bool is_number(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool is_container(std::string_view class_name) {
  constexpr std::array<std::string_view, 4> kContainers = {"ModuleList", "ModuleDict", "Sequential",
                                                           "Module"};
  return std::find(kContainers.begin(), kContainers.end(), class_name) != kContainers.end();
}

/// The modules with what the guess asks about them. A parameter is counted under its first name alone, so
/// that a module under a second name has none.
class Modules {
 public:
  explicit Modules(const ModelStructure& model) : modules_(model.modules) {
    for (const ParameterInfo& parameter : model.parameters) {
      const std::int64_t elements = checked_numel(parameter.shape);
      std::string_view owner = parameter.fqns.front();
      while (!owner.empty()) {
        const std::size_t dot = owner.rfind('.');
        owner = owner.substr(0, dot == std::string_view::npos ? 0 : dot);
        std::int64_t& sum = elements_[owner];
        sum = checked_add(sum, elements);
      }
    }
    for (std::size_t i = 1; i < modules_.size(); ++i) {
      const std::string_view name = modules_[i].name;
      const std::size_t dot = name.rfind('.');
      children_[name.substr(0, dot == std::string_view::npos ? 0 : dot)].push_back(i);
    }
  }

  [[nodiscard]] std::vector<std::string> in_lists() const {
    std::set<std::string> classes;
    const ModuleInfo* outer = nullptr;
    for (const ModuleInfo& module : modules_) {
      if (outer != nullptr && is_at_or_inside(module.name, outer->name)) continue;
      if (!is_list(module)) continue;
      classes.insert(modules_[children_.at(module.name).front()].class_name);
      outer = &module;
    }
    return {classes.begin(), classes.end()};
  }

  [[nodiscard]] std::vector<std::string> largest_repeated() const {
    struct Class {
      std::size_t count = 0;
      std::int64_t elements = 0;
      const ModuleInfo* last = nullptr;
    };
    std::map<std::string, Class> classes;
    for (std::size_t i = 1; i < modules_.size(); ++i) {
      const ModuleInfo& module = modules_[i];
      if (is_container(module.class_name) || elements(module.name) == 0) continue;
      Class& entry = classes[module.class_name];
      if (entry.last != nullptr && is_at_or_inside(module.name, entry.last->name)) continue;
      entry = {entry.count + 1, checked_add(entry.elements, elements(module.name)), &module};
    }
    std::erase_if(classes, [](const auto& item) { return item.second.count < 2; });
    if (classes.empty()) return {};
    return {std::max_element(classes.begin(), classes.end(), [](const auto& a, const auto& b) {
              return a.second.elements < b.second.elements;
            })->first};
  }

 private:
  [[nodiscard]] std::int64_t elements(std::string_view module) const {
    const auto found = elements_.find(module);
    return found == elements_.end() ? 0 : found->second;
  }

  [[nodiscard]] bool is_list(const ModuleInfo& module) const {
    const auto found = children_.find(module.name);
    if (found == children_.end()) return false;
    if (found->second.size() < 2 && module.class_name != "ModuleList") return false;
    const std::string& class_name = modules_[found->second.front()].class_name;
    return !is_container(class_name) && std::ranges::all_of(found->second, [&](std::size_t child) {
      const ModuleInfo& info = modules_[child];
      return info.class_name == class_name && is_number(info.name.substr(info.name.rfind('.') + 1)) &&
             has_module_with_parameters(info.name);
    });
  }

  [[nodiscard]] bool has_module_with_parameters(std::string_view module) const {
    const auto found = children_.find(module);
    return found != children_.end() && std::ranges::any_of(found->second, [&](std::size_t child) {
             return elements(modules_[child].name) > 0;
           });
  }

  const std::vector<ModuleInfo>& modules_;
  std::map<std::string_view, std::int64_t> elements_;              ///< Elements at or inside each module.
  std::map<std::string_view, std::vector<std::size_t>> children_;  ///< Indices of the modules right below.
};

}  // namespace

std::vector<std::string> guess_layer_classes(const ModelStructure& model) {
  if (model.modules.empty()) return {};
  const Modules modules(model);
  std::vector<std::string> classes = modules.in_lists();
  return classes.empty() ? modules.largest_repeated() : classes;
}

}  // namespace accel
