#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "base/environment.hpp"

namespace accel::machine {

/// The Python that scripts would run with.
struct Python {
  std::string path;                             ///< The python3 along PATH; empty if there is none.
  std::string version;                          ///< For example "3.11.2"; empty if it did not say.
  std::map<std::string, std::string> packages;  ///< Versions of torch and accelerate, as far as it has them.
  std::string why_less;                         ///< Why it said nothing; empty if it did.
};

/// Reads what the program of find_python() prints: "python 3.11.2", "torch 2.9.1", a line each. Other lines
/// are left out.
void parse_python(std::string_view text, Python& python);

/// Asks the python3 along PATH for its version and reads the metadata of the packages, without importing
/// them. It waits at most ten seconds. `is_cancelled` is that of launch::output_of().
[[nodiscard]] Python find_python(const Environment& environment, const std::function<bool()>& is_cancelled);

}  // namespace accel::machine
