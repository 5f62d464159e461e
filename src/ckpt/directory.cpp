#include "ckpt/directory.hpp"

#include <algorithm>
#include <system_error>

#include "base/error.hpp"

namespace accel::ckpt {

std::vector<std::string> files_in(const std::filesystem::path& directory, std::string_view prefix,
                                  std::string_view suffix) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    const bool fits =
        name.size() >= prefix.size() + suffix.size() && name.starts_with(prefix) && name.ends_with(suffix);
    std::error_code unreadable;
    if (fits && entry.is_regular_file(unreadable)) names.push_back(name);
  }
  if (error) throw system_error("list", directory.string(), error.value());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace accel::ckpt
