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
  std::size_t index = 0;  ///< Into ScriptModules::tensors or ::modules.
};

/// A module object of an archive.
struct ScriptModule {
  std::string type;                   ///< "__torch__.nn.___torch_mangle_12.Linear"
  const ScriptClass* code = nullptr;  ///< Its class.
  std::vector<ScriptAttribute> attributes;

  /// The last atom of the type: "Linear".
  [[nodiscard]] std::string_view class_name() const;
  /// nullptr if it has no such attribute.
  [[nodiscard]] const ScriptAttribute* find(std::string_view attribute) const;
  [[nodiscard]] bool is_parameter(const ScriptAttribute& attribute) const;
  [[nodiscard]] bool is_buffer(const ScriptAttribute& attribute) const;
};

/// The module objects of a TorchScript archive, without their data. What is one object in the model is there
/// once, under however many names: tied parameters, and modules that are used twice. Two tensors that only
/// share a storage are two.
///
/// Attributes are in the order of the pickle, which torch writes in the order of the class. Tensors in lists
/// and the like are left out.
struct ScriptModules {
  std::vector<ScriptModule> modules;  ///< The root first.
  std::vector<TorchTensor> tensors;
  std::map<std::string, std::map<std::string, ScriptClass>> code;  ///< By source file and name.
};

/// Reads the pickle and those source files that its classes are in. Throws Error (kCorrupt) if the archive
/// holds no module, or lacks the code of a class.
[[nodiscard]] ScriptModules read_script_modules(const TorchFile& archive);

/// Calls `visit(path, module)` for the root, whose path is empty, and every module below, in pre-order and
/// by each of its names ("blocks.0.norm"). Throws Error (kCorrupt) if modules contain themselves.
void for_each_module(const ScriptModules& model,
                     const std::function<void(const std::string& path, const ScriptModule& module)>& visit);

}  // namespace accel::ckpt
