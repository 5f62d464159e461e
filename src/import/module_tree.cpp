#include "import/module_tree.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>

#include "base/error.hpp"

namespace accel {
namespace {

/// The part of a path before its last dot, and the part behind it.
std::pair<std::string, std::string> split_last(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  if (dot == std::string::npos) return {"", path};
  return {path.substr(0, dot), path.substr(dot + 1)};
}

std::string class_name_of(std::string_view name) {
  std::string text;
  for (const char c : name) text += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return text.empty() || std::isdigit(static_cast<unsigned char>(text.front())) != 0 ? "_" + text : text;
}

}  // namespace

std::string_view below(std::string_view path, std::string_view module) {
  return module.empty() ? path : path.substr(module.size() + 1);
}

ModuleTree::ModuleTree(const ExportedGraph& graph, const ckpt::Pt2Archive& archive,
                       const std::vector<std::vector<std::string>>& ties) {
  add("");
  for (const std::string& path : graph.modules) add(path);
  for (const auto& [path, class_name] : graph.classes)
    modules_[add(path)].class_name = class_name_of(class_name);
  for (const std::string& name : graph.parameters) add_tensor(name, true);
  for (const std::string& name : graph.buffers) add_tensor(name, false);
  // Tied tensors lie at one place.
  std::map<std::pair<std::string, std::int64_t>, std::vector<std::string>> places;
  for (const auto& names : {graph.parameters, graph.buffers}) {
    for (const std::string& name : names) {
      names_[name] = {name};
      const ckpt::Pt2Tensor& tensor = archive.tensor(name);
      if (archive.record_bytes(tensor) == 0) continue;  // All tensors without values have one empty record.
      std::vector<std::string>& others = places[{tensor.record, tensor.storage_offset}];
      const auto other = std::find_if(others.begin(), others.end(), [&](const std::string& candidate) {
        return archive.tensor(candidate) == tensor;
      });
      if (other != others.end()) {
        tie(*other, name);
      } else {
        others.push_back(name);
      }
    }
  }
  for (const std::vector<std::string>& group : ties) {
    for (const std::string& name : group) {
      const ckpt::Pt2Tensor& first = archive.tensor(group.front());
      const ckpt::Pt2Tensor& tensor = archive.tensor(name);
      if (first.dtype != tensor.dtype || first.shape != tensor.shape || !names_.contains(name) ||
          !names_.contains(group.front()))
        throw_corrupt(fmt::format("'{}' and '{}' cannot be tied", group.front(), name));
      const std::vector<std::string>& known = names_of(group.front());
      if (std::find(known.begin(), known.end(), name) == known.end()) tie(group.front(), name);
    }
  }
}

void ModuleTree::tie(const std::string& name, const std::string& other) {
  std::vector<std::string> all = names_of(name);
  const std::vector<std::string>& more = names_of(other);
  all.insert(all.end(), more.begin(), more.end());
  for (const std::string& same : all) names_[same] = all;
}

std::size_t ModuleTree::add(const std::string& path) {
  if (const auto found = by_path_.find(path); found != by_path_.end()) return found->second;
  constexpr std::ptrdiff_t kDeepest = 100;
  if (std::count(path.begin(), path.end(), '.') > kDeepest)
    throw_corrupt(fmt::format("the module '{}...' nests too deeply", path.substr(0, kDeepest)));
  std::size_t parent = 0;
  const auto [outer, name] = split_last(path);
  if (!path.empty() && name.empty()) throw_corrupt(fmt::format("the module '{}' has no name", path));
  if (!path.empty()) parent = add(outer);
  const std::size_t place = modules_.size();
  modules_.push_back({.path = path});
  by_path_[path] = place;
  if (!path.empty()) modules_[parent].children.emplace_back(name, place);
  return place;
}

void ModuleTree::add_tensor(const std::string& name, bool is_parameter) {
  const auto [module, own] = split_last(name);
  if (own.empty()) throw_corrupt(fmt::format("the tensor '{}' has no name", name));
  ImportedModule& owner = modules_[add(module)];
  (is_parameter ? owner.parameters : owner.buffers).push_back(own);
}

std::size_t ModuleTree::find(const std::string& path) const {
  const auto found = by_path_.find(path);
  if (found == by_path_.end()) throw_corrupt(fmt::format("the program has no module '{}'", path));
  return found->second;
}

std::string ModuleTree::type_of(std::size_t module) const {
  return fmt::format("__torch__.___torch_mangle_{}.{}", module, modules_.at(module).class_name);
}

const std::vector<std::string>& ModuleTree::names_of(const std::string& name) const {
  const auto found = names_.find(name);
  if (found == names_.end()) throw_corrupt(fmt::format("the program has no tensor '{}'", name));
  return found->second;
}

}  // namespace accel
