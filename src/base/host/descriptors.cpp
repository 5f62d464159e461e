#include "base/host/descriptors.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <limits>
#include <system_error>

namespace accel {

std::size_t open_descriptors() {
  std::error_code error;
  const std::filesystem::directory_iterator found("/proc/self/fd", error);
  return error ? 0 : static_cast<std::size_t>(std::distance(begin(found), end(found)));
}

std::size_t allow_descriptors(std::size_t count) {
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::numeric_limits<std::size_t>::max();
  const std::size_t open = open_descriptors();
  const rlim_t wanted = std::min<rlim_t>(open + count, limit.rlim_max);
  if (limit.rlim_cur < wanted) {
    const struct rlimit raised { wanted, limit.rlim_max };
    if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) limit.rlim_cur = wanted;
  }
  return limit.rlim_cur > open ? static_cast<std::size_t>(limit.rlim_cur) - open : 0;
}

}  // namespace accel
