#include "ckpt/store/json_count.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"

namespace accel::ckpt {

std::int64_t count_of(const nlohmann::json& value, std::string_view what, std::int64_t least,
                      std::int64_t most) {
  const bool fits = value.is_number_unsigned()
                        ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(most)
                        : value.is_number_integer();
  const std::int64_t count = fits ? value.get<std::int64_t>() : -1;
  if (!fits || count < least || count > most)
    throw_corrupt(fmt::format("{} is {}, not a whole number of {} to {}", what, value.dump(), least, most));
  return count;
}

}  // namespace accel::ckpt
