#include "base/metadata_limit.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <optional>

#include "base/text.hpp"

namespace accel {
namespace {

constexpr std::uint64_t kDefaultBytes = 1'000'000'000;

std::string how_to_raise_it() {
  return fmt::format("the file may be damaged; if it is not, set {} to a larger size, such as 8GB",
                     kMetadataLimitVariable);
}

}  // namespace

std::uint64_t metadata_limit() {
  const char* text = std::getenv(kMetadataLimitVariable);
  if (text == nullptr || *text == '\0') return kDefaultBytes;
  const std::optional<std::uint64_t> bytes = parse_size(text);
  if (!bytes || *bytes == 0)
    throw Error(ErrorKind::kUsage,
                fmt::format("{}: '{}' is not a size such as 4GB", kMetadataLimitVariable, text));
  return *bytes;
}

Error beyond_metadata_limit(std::string_view what, std::uint64_t bytes) {
  return Error(ErrorKind::kCorrupt,
               fmt::format("{} would take at least {} of memory, and metadata may take {} ({})", what,
                           format_bytes(bytes), format_bytes(metadata_limit()), kMetadataLimitVariable))
      .hint(how_to_raise_it());
}

bool is_beyond_metadata_limit(const Error& error) { return error.advice() == how_to_raise_it(); }

void check_metadata_bytes(std::string_view what, std::uint64_t bytes) {
  if (bytes > metadata_limit()) throw beyond_metadata_limit(what, bytes);
}

}  // namespace accel
