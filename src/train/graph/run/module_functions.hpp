#pragma once

#include <ATen/core/ivalue.h>

#include <unordered_map>
#include <utility>

#include "base/error.hpp"

namespace accel::train {

/// Gives module objects the function that an operator in their code calls, for as long as this lives. The
/// objects must outlive it, and there is one of a kind at a time.
///
/// As with UnitRegistration, the operator is a plain function and finds the module by its address alone, so
/// that the table behind this class is global.
template <class Function>
class ModuleFunctions {
 public:
  using ByObject = std::unordered_map<const c10::ivalue::Object*, Function>;

  explicit ModuleFunctions(ByObject functions) {
    if (!table().empty())
      throw Error(ErrorKind::kFailure, "this process has a model with operators of its own already");
    table() = std::move(functions);
  }
  ModuleFunctions(const ModuleFunctions&) = delete;
  ModuleFunctions& operator=(const ModuleFunctions&) = delete;
  ~ModuleFunctions() { table().clear(); }

  /// The function of a module; null if it has none.
  static const Function* of(const c10::ivalue::Object& module) {
    const auto found = table().find(&module);
    return found == table().end() ? nullptr : &found->second;
  }

 private:
  static ByObject& table() {
    static ByObject functions;
    return functions;
  }
};

}  // namespace accel::train
