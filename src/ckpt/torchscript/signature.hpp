#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace accel::ckpt {

/// An argument of a method.
struct ScriptArgument {
  std::string name;
  std::string type;          ///< The type as it is written, such as "Tensor" or "Optional[Tensor]".
  bool has_default = false;  ///< A caller may leave the argument out.
};

/// The arguments of a method without `self`, in order. `source` is the text of the method from its `def` on
/// (ScriptMethod::source). Text that is not the head of a method gives what was read before it ends.
[[nodiscard]] std::vector<ScriptArgument> arguments_of(std::string_view source);

/// The type that a method returns as it is written, such as "Tuple[Tensor, Tensor]"; empty if the text does
/// not say it.
[[nodiscard]] std::string returned_type(std::string_view source);

}  // namespace accel::ckpt
