#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace accel::launch {

// What is read from a message of another launcher. A field that is missing or of another form is an Error
// (kFailure) with its name, what it is and what is expected.

[[nodiscard]] const nlohmann::json& field(const nlohmann::json& object, const char* name);
[[nodiscard]] std::string text_in(const nlohmann::json& object, const char* name, std::size_t most_bytes);
/// An integer from `least` to `most`. A number that does not fit into an int does not wrap around.
[[nodiscard]] int int_in(const nlohmann::json& object, const char* name, int least, int most);
[[nodiscard]] bool bool_in(const nlohmann::json& object, const char* name);

}  // namespace accel::launch
