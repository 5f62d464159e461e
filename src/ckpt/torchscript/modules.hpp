#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/torch/file.hpp"
#include "ckpt/torchscript/classes.hpp"

namespace accel::ckpt {

/// An attribute of a module object.
struct ScriptAttribute {
  enum class Kind { kOther, kTensor, kModule };

  std::string name;
  Kind kind = Kind::kOther;
  std::size_t index = 0;  ///< Index in ScriptModules::tensors or ::modules.
};

/// A module object of an archive.
struct ScriptModule {
  std::string type;                   ///< The type, such as "__torch__.nn.___torch_mangle_12.Linear".
  const ScriptClass* code = nullptr;  ///< The class of the object.
  std::vector<ScriptAttribute> attributes;

  /// The last atom of the type: "Linear".
  [[nodiscard]] std::string_view class_name() const;
  /// The attribute of that name, or nullptr.
  [[nodiscard]] const ScriptAttribute* find(std::string_view attribute) const;
  [[nodiscard]] bool is_parameter(const ScriptAttribute& attribute) const;
  [[nodiscard]] bool is_buffer(const ScriptAttribute& attribute) const;
};

/// The module objects of a TorchScript archive, without their data. An object of the model is here once, even
/// if it has several names: a tied parameter, or a module that is used twice. Tensors that only share a
/// storage are different objects.
///
/// Attributes are in the order of the pickle, which is the order of the class. Tensors in lists and other
/// containers are left out.
struct ScriptModules {
  std::vector<ScriptModule> modules;  ///< The first is the root.
  std::vector<TorchTensor> tensors;
  std::map<std::string, std::map<std::string, ScriptClass>> code;  ///< Classes by source file and name.
};

/// Reads the pickle and the source files of its classes. Throws Error (kCorrupt) if the archive does not
/// contain a module or the code of a class.
[[nodiscard]] ScriptModules read_script_modules(const TorchFile& archive);

/// Calls `visit(path, module)` for the root, whose path is empty, and every module below it, in pre-order,
/// under each of its names ("blocks.0.norm"). Throws Error (kCorrupt) if modules contain themselves.
void for_each_module(const ScriptModules& model,
                     const std::function<void(const std::string& path, const ScriptModule& module)>& visit);

}  // namespace accel::ckpt
