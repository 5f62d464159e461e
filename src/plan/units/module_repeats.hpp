#pragma once

#include <string>
#include <unordered_map>
#include <unordered_set>

#include "structure/structure.hpp"

namespace accel {

/// Which paths of a model lead to one module of Python, as in `self.d = self.b`. torch.jit.script makes a
/// module object for each path, so that the objects of a file do not say it. Two paths have one module if
/// their classes are the same and all their parameters are the same tensors under the same names. Linears
/// without a bias that share only their weight cannot be told from one linear with two paths.
class ModuleRepeats {
 public:
  explicit ModuleRepeats(const ModelStructure& model);

  /// The first path of the module at `path` in the order of torch's named_modules(); `path` itself if it is
  /// the first, or if the module has no parameters.
  [[nodiscard]] const std::string& first_path_of(const std::string& path) const { return first_.at(path); }
  /// The attribute that holds the module at `path`: the first path of its parent, and its own name. Paths
  /// with one attribute lead to one module also after that attribute has been set to another.
  [[nodiscard]] std::string attribute_of(const std::string& path) const;
  /// Whether a traversal with torch's named_children() comes to `path`. It leaves out a child that is the
  /// same module as a child before it.
  [[nodiscard]] bool is_visited(const std::string& path) const { return !left_out_.contains(path); }

 private:
  std::unordered_map<std::string, std::string> first_;
  std::unordered_set<std::string> left_out_;
};

/// The path of the module that holds the module or parameter `path`; empty for the root.
[[nodiscard]] std::string parent_of(const std::string& path);

}  // namespace accel
