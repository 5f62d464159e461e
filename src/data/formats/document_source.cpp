#include "data/formats/document_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/error.hpp"
#include "base/metadata_limit.hpp"

namespace accel {

void DocumentSource::require_room(std::int64_t more_documents) const {
  if (more_documents > std::numeric_limits<std::uint32_t>::max() - size())
    throw Error(ErrorKind::kUsage, "there are more documents than 2^32 - 1");
  check_metadata_bytes("the table of lengths",
                       (begins_.size() + static_cast<std::size_t>(more_documents)) * sizeof(std::int64_t));
}

void DocumentSource::require_known(std::int64_t document, std::span<const std::int64_t> tokens) const {
  const std::int64_t end = vocabulary_.value_or(std::numeric_limits<std::int64_t>::max());
  const auto wrong = std::find_if(tokens.begin(), tokens.end(),
                                  [&](std::int64_t token) { return token < 0 || token >= end; });
  if (wrong == tokens.end()) return;
  const std::string what = *wrong < 0 ? std::string("is not a token, which is 0 or greater")
                                      : fmt::format("is not in the model's vocabulary of {} tokens", end);
  throw Error(ErrorKind::kUsage, fmt::format("{}: token {} at position {} of it {}", position(document),
                                             *wrong, wrong - tokens.begin(), what))
      .hint("was the data made with another tokenizer than the model's? positions count tokens from 0");
}

}  // namespace accel
