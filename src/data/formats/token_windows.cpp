#include <fmt/format.h>

#include <utility>

#include "data/files/token_stream.hpp"
#include "data/formats/data_formats.hpp"
#include "data/formats/fingerprint.hpp"
#include "data/formats/sample_source.hpp"
#include "data/formats/token_sample.hpp"

namespace accel {
namespace {

/// Sample k is the window [k * length, k * length + length] of a stream of tokens: the first `length` tokens
/// are input_ids, the last `length` are labels, unless Labels says otherwise.
class TokenWindows final : public SampleSource {
 public:
  TokenWindows(TokenStream stream, std::int64_t length, const DataFormat& format)
      : stream_(std::move(stream)), length_(length), format_(format) {
    for (const char* name : {kTokensField, kLabelsField}) {
      fields_.push_back({name,
                         ckpt::DType::kInt64,
                         {length},
                         static_cast<std::size_t>(length) * ckpt::item_bytes(ckpt::DType::kInt64)});
    }
  }

  std::int64_t size() const override { return stream_.windows(length_); }
  std::string size_text() const override {
    return fmt::format("{} tokens make {} samples of {}", stream_.size(), size(), length_);
  }
  std::int64_t sequence_length() const override { return length_; }
  const std::vector<SampleField>& fields() const override { return fields_; }

  void read(std::int64_t sample, Labels labels, std::span<const std::span<std::byte>> out) const override {
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(length_) + 1);
    stream_.read(sample * length_, tokens);
    write_token_sample(tokens, labels, out);
  }

  void set_vocabularies(std::map<std::string, std::int64_t> tokens) override {
    const auto found = tokens.find(kTokensField);
    if (found == tokens.end()) return;
    require_vocabulary(format_, found->second);
    stream_.set_vocabulary(found->second);
  }
  std::string position(std::int64_t sample) const override { return fmt::format("sample {}", sample); }
  std::vector<const DataFile*> files_of(std::int64_t sample) const override {
    return stream_.files_of(sample * length_, length_ + 1);
  }
  void accept_changes() const override { stream_.accept_changes(); }
  std::uint32_t fingerprint() const override { return fingerprint_of(stream_); }

 private:
  TokenStream stream_;
  std::int64_t length_;
  const DataFormat& format_;
  std::vector<SampleField> fields_;
};

}  // namespace

std::unique_ptr<SampleSource> open_token_windows(const config::DataSource& source) {
  return std::make_unique<TokenWindows>(TokenStream::open(source), source.sequence_length,
                                        data_format(source.format));
}

}  // namespace accel
