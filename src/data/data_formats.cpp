#include "data/data_formats.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"

namespace accel {

const DataFormat& data_format(std::string_view name) {
  const auto* const found = std::find_if(kDataFormats.begin(), kDataFormats.end(),
                                         [&](const DataFormat& format) { return format.name == name; });
  if (found == kDataFormats.end())
    throw Error(ErrorKind::kUsage, fmt::format("no such data format: '{}'", name));
  return *found;
}

}  // namespace accel
