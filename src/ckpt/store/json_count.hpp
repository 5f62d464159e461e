#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace accel::ckpt {

/// The whole number in `value`, from `least` to `most`. Throws Error (kCorrupt) for anything else, which a
/// conversion to an integer would take, such as 1.5 and -1. The message names `what`, such as "'step'".
[[nodiscard]] std::int64_t count_of(const nlohmann::json& value, std::string_view what, std::int64_t least,
                                    std::int64_t most);

}  // namespace accel::ckpt
