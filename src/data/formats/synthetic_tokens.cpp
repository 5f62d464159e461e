#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/error.hpp"
#include "ckpt/io/crc32.hpp"
#include "data/formats/data_formats.hpp"
#include "data/formats/sample_source.hpp"
#include "data/formats/token_sample.hpp"

namespace accel {
namespace {

/// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014): the output that
/// follows a state.
std::uint64_t split_mix(std::uint64_t state) {
  std::uint64_t x = state + 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

/// Samples of random tokens, of which each is a function of its sample's number, its place and the size of
/// the vocabulary. They are the same in every run and on every rank, as those of a file would be.
class SyntheticTokens final : public SampleSource {
 public:
  explicit SyntheticTokens(const config::DataSource& source)
      : samples_(source.samples), length_(source.sequence_length), vocabulary_(source.vocabulary) {
    const std::size_t bytes = static_cast<std::size_t>(length_) * ckpt::item_bytes(ckpt::DType::kInt64);
    for (const char* name : {kTokensField, kLabelsField})
      fields_.push_back({name, ckpt::DType::kInt64, {length_}, bytes});
  }

  std::int64_t size() const override { return samples_; }
  std::string size_text() const override {
    return fmt::format("{} samples of {} random tokens", samples_, length_);
  }
  std::int64_t sequence_length() const override { return length_; }
  const std::vector<SampleField>& fields() const override { return fields_; }

  void read(std::int64_t sample, Labels labels, std::span<const std::span<std::byte>> out) const override {
    write_token_sample(tokens_of(sample, length_ + 1), labels, out);
  }

  void set_vocabularies(std::map<std::string, std::int64_t> tokens) override {
    const auto found = tokens.find(kTokensField);
    if (found == tokens.end() || vocabulary_ <= found->second) return;
    throw Error(ErrorKind::kUsage,
                fmt::format("format: synthetic with vocabulary: {} has tokens that the model, "
                            "which knows {}, does not",
                            vocabulary_, found->second))
        .hint(fmt::format("set vocabulary: {}", found->second));
  }
  std::string position(std::int64_t sample) const override { return fmt::format("sample {}", sample); }
  std::vector<const DataFile*> files_of(std::int64_t /*sample*/) const override { return {}; }
  void accept_changes() const override {}
  std::uint32_t fingerprint() const override {
    constexpr std::int64_t kTokens = 64;
    const std::vector<std::int64_t> tokens = tokens_of(0, kTokens);
    return ckpt::crc32(std::as_bytes(std::span(tokens)));
  }

 private:
  [[nodiscard]] std::vector<std::int64_t> tokens_of(std::int64_t sample, std::int64_t count) const {
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(count));
    const std::uint64_t state = split_mix(static_cast<std::uint64_t>(sample));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      // The upper 32 bits times a vocabulary of at most 2^32 fit 64 bits.
      const std::uint64_t drawn = split_mix(state + i) >> 32;
      tokens[i] = static_cast<std::int64_t>(drawn * static_cast<std::uint64_t>(vocabulary_) >> 32);
    }
    return tokens;
  }

  std::int64_t samples_;
  std::int64_t length_;
  std::int64_t vocabulary_;
  std::vector<SampleField> fields_;
};

}  // namespace

std::unique_ptr<SampleSource> open_synthetic_tokens(const config::DataSource& source) {
  return std::make_unique<SyntheticTokens>(source);
}

}  // namespace accel
