#include "data/data_files.hpp"

#include <fmt/format.h>
#include <glob.h>

#include "base/error.hpp"

namespace accel {

std::vector<std::string> data_files(const std::string& pattern) {
  glob_t found{};
  const int result = ::glob(pattern.c_str(), GLOB_ERR, nullptr, &found);
  std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + (result == 0 ? found.gl_pathc : 0));
  ::globfree(&found);
  if (paths.empty()) throw Error(ErrorKind::kUsage, fmt::format("no file matches '{}'", pattern));
  return paths;
}

}  // namespace accel
