#include "import/module_tree.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <set>

#include "base/checked.hpp"
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

/// The elements of its record from the first to behind the last of the tensor.
std::pair<std::int64_t, std::int64_t> span_of(const ckpt::Pt2Tensor& tensor) {
  std::int64_t end = tensor.storage_offset + 1;
  for (std::size_t dim = 0; dim < tensor.shape.size(); ++dim) {
    if (tensor.shape[dim] == 0) return {tensor.storage_offset, tensor.storage_offset};
    end = checked_add(end, checked_mul(tensor.shape[dim] - 1, tensor.strides.at(dim)));
  }
  return {tensor.storage_offset, end};
}

/// Throws Error (kFailure) if a parameter that is trained shares memory with another tensor that is not tied
/// to it. In Python both would change.
void refuse_overlaps(const ExportedGraph& graph, const ckpt::Pt2Archive& archive) {
  std::map<std::string, std::vector<std::string>> in_record;
  for (const auto* names : {&graph.parameters, &graph.buffers}) {
    for (const std::string& name : *names) {
      const ckpt::Pt2Tensor& tensor = archive.tensor(name);
      if (archive.record_bytes(tensor) > 0) in_record[tensor.record].push_back(name);
    }
  }
  const std::set<std::string> parameters(graph.parameters.begin(), graph.parameters.end());
  for (auto& [record, names] : in_record) {
    std::stable_sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
      return span_of(archive.tensor(a)).first < span_of(archive.tensor(b)).first;
    });
    for (std::size_t i = 0; i < names.size(); ++i) {
      const ckpt::Pt2Tensor& one = archive.tensor(names[i]);
      for (std::size_t j = i + 1; j < names.size(); ++j) {
        const ckpt::Pt2Tensor& other = archive.tensor(names[j]);
        if (span_of(other).first >= span_of(one).second) break;
        const bool are_one_kind = parameters.contains(names[i]) == parameters.contains(names[j]);
        const bool trains = (one.requires_grad && parameters.contains(names[i])) ||
                            (other.requires_grad && parameters.contains(names[j]));
        if (!trains || (are_one_kind && one == other)) continue;
        throw Error(
            ErrorKind::kFailure,
            fmt::format("'{}' and '{}' share memory and are not the same tensor, so that a step would "
                        "change one without the other",
                        names[i], names[j]))
            .hint("tie parameters by assigning one to the other, or copy the values with clone()");
      }
    }
  }
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
  for (const std::string& name : graph.parameters) add_tensor(name, &ImportedModule::parameters);
  for (const std::string& name : graph.buffers) add_tensor(name, &ImportedModule::buffers);
  for (const std::string& name : graph.constants) add_tensor(name, &ImportedModule::constants);
  // A frozen parameter that is a buffer, too, stays two tensors, because a parameter is sharded.
  for (const auto* names : {&graph.parameters, &graph.buffers, &graph.constants})
    tie_by_place(*names, archive);
  refuse_overlaps(graph, archive);
  for (const std::vector<std::string>& group : ties) {
    for (const std::string& name : group) {
      if (archive.record_bytes(archive.tensor(name)) > 0) continue;  // Its place has told it.
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

void ModuleTree::tie_by_place(const std::vector<std::string>& names, const ckpt::Pt2Archive& archive) {
  std::map<std::pair<std::string, std::int64_t>, std::vector<std::string>> places;
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

void ModuleTree::add_tensor(const std::string& name, std::vector<std::string> ImportedModule::*kind) {
  const auto [module, own] = split_last(name);
  if (own.empty()) throw_corrupt(fmt::format("the tensor '{}' has no name", name));
  (modules_[add(module)].*kind).push_back(own);
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
