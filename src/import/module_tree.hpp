#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/pt2/archive.hpp"
#include "import/graph.hpp"

namespace accel {

/// A module of an imported model.
struct ImportedModule {
  std::string path;                     ///< The path; empty for the root.
  std::string class_name = "Module";    ///< "Module" for a container, which is never called.
  std::vector<std::string> parameters;  ///< The names of its own parameters, without the path.
  std::vector<std::string> buffers;     ///< The names of its own buffers, persistent or not.
  std::vector<std::string> constants;   ///< The names of its own tensors that are neither.
  /// The names of its own modules, with their places in ModuleTree::modules.
  std::vector<std::pair<std::string, std::size_t>> children;
  std::vector<std::string> methods;  ///< The source of each method, from its `def` to its end.
};

/// The modules of an imported model, the root first, parents before their children.
class ModuleTree {
 public:
  /// `ties` are the names of tied parameters whose values the archive does not have. If it has the values,
  /// their places tell which parameters are tied.
  ModuleTree(const ExportedGraph& graph, const ckpt::Pt2Archive& archive,
             const std::vector<std::vector<std::string>>& ties);

  [[nodiscard]] const std::vector<ImportedModule>& modules() const { return modules_; }
  /// The place of the module in modules(). Throws Error (kCorrupt) if there is none.
  [[nodiscard]] std::size_t find(const std::string& path) const;
  [[nodiscard]] ImportedModule& at(std::size_t module) { return modules_.at(module); }
  [[nodiscard]] const ImportedModule& at(std::size_t module) const { return modules_.at(module); }

  /// The qualified name of the module's class, which no other module has. Its last atom is the class name.
  [[nodiscard]] std::string type_of(std::size_t module) const;
  /// The names under which the model has the tensor `name`: several if it is tied.
  [[nodiscard]] const std::vector<std::string>& names_of(const std::string& name) const;

 private:
  std::size_t add(const std::string& path);
  void add_tensor(const std::string& name, std::vector<std::string> ImportedModule::*kind);
  /// Ties the tensors of one kind that lie at one place.
  void tie_by_place(const std::vector<std::string>& names, const ckpt::Pt2Archive& archive);
  /// Makes two tensors one.
  void tie(const std::string& name, const std::string& other);

  std::vector<ImportedModule> modules_;
  std::map<std::string, std::size_t> by_path_;
  std::map<std::string, std::vector<std::string>> names_;
};

/// The rest of `path` below the module `module`: "weight" for "head.weight" below "head".
[[nodiscard]] std::string_view below(std::string_view path, std::string_view module);

}  // namespace accel
