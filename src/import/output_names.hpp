#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace accel {

/// The names of a program's outputs, one for each of its output_specs, if the author's forward returned a
/// dict or a dataclass such as a ModelOutput of transformers. The names of nested outputs are joined with
/// dots: "hidden_states.3". Empty if forward returned a tensor, a tuple or a list. Throws Error (kCorrupt) if
/// the description of the outputs does not fit their number.
[[nodiscard]] std::vector<std::string> output_names(const nlohmann::json& program);

}  // namespace accel
