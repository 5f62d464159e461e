#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace accel::ckpt {

/// Names of the regular files in `directory` (links to files included) that begin and end so; sorted.
[[nodiscard]] std::vector<std::string> files_in(const std::filesystem::path& directory,
                                                std::string_view prefix, std::string_view suffix);

}  // namespace accel::ckpt
