#include "ckpt/dcp/transform.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>

#include "base/error.hpp"

namespace accel::ckpt {

bool has_known_transform(const DcpRange& range) {
  if (range.transforms().empty()) return true;
  // Only the major version counts.
  const std::string& transform = range.transforms().front();
  return range.transforms().size() == 1 &&
         (transform == "stream.zstd/1" || transform.starts_with("stream.zstd/1."));
}

bool is_zstd(const DcpRange& range) {
  if (!has_known_transform(range)) {
    throw Error(ErrorKind::kFailure, fmt::format("it is transformed with {}; accel only knows stream.zstd/1",
                                                 fmt::join(range.transforms(), ", ")));
  }
  return !range.transforms().empty();
}

}  // namespace accel::ckpt
