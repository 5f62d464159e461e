#include "data/formats/data_formats.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "data/formats/mixture.hpp"
#include "data/formats/sample_source.hpp"

namespace accel {

const DataFormat& data_format(std::string_view name) {
  const auto* const found = std::find_if(kDataFormats.begin(), kDataFormats.end(),
                                         [&](const DataFormat& format) { return format.name == name; });
  if (found == kDataFormats.end())
    throw Error(ErrorKind::kUsage, fmt::format("no such data format: '{}'", name));
  return *found;
}

std::unique_ptr<SampleSource> open_data(const config::DataSource& source) {
  const DataFormat& format = data_format(source.format);
  if (source.mixture.empty()) return format.open(source);
  std::vector<std::unique_ptr<SampleSource>> sources;
  for (const config::MixturePart& part : source.mixture) {
    config::DataSource its = source;
    its.mixture.clear();
    its.path = part.path;
    sources.push_back(format.open(its));
  }
  return mix(source.mixture, std::move(sources));
}

bool DataFormat::makes_field(std::string_view field) const {
  if (has_own_fields) return false;
  return field == kTokensField || field == kLabelsField ||
         (has_documents && (field == kPositionsField || field == kAttentionField));
}

bool is_beside_tokens(std::string_view name) {
  constexpr auto kNames = std::to_array<std::string_view>(
      {"attention_mask", "decoder_attention_mask", "special_tokens_mask", "completion_mask",
       "assistant_masks", "loss_mask", "pixel_mask", "token_type_ids", "segment_ids", "position_ids",
       "cache_position", "seq_lengths"});
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

void require_vocabulary(const DataFormat& format, std::int64_t vocabulary) {
  if (format.tokens == 0 || vocabulary <= 2 * format.tokens) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("format: {} has {} different tokens, but the model knows {}: those of a tokenizer",
                          format.name, format.tokens, vocabulary))
      .hint(
          "write the tokens that the model's tokenizer makes of the text into a .npy, for format: tokens; "
          "the guide has the lines for it (Text for a model with a tokenizer)");
}

}  // namespace accel
