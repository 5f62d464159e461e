#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "base/metadata_limit.hpp"
#include "data/arrow/arrow_dataset.hpp"
#include "data/formats/arrow_documents.hpp"
#include "data/formats/best_fit.hpp"
#include "data/formats/data_formats.hpp"
#include "data/formats/document_files.hpp"
#include "data/formats/fingerprint.hpp"
#include "data/formats/sample_source.hpp"

namespace accel {
namespace {

/// The memory of a document: where it begins, its length, its place in a pack, and what packing takes.
constexpr std::uint64_t kBytesPerDocument = 32;

constexpr std::size_t kTokensAt = 0;
constexpr std::size_t kLabelsAt = 1;
constexpr std::size_t kPositionsAt = 2;
constexpr std::size_t kAttentionAt = 3;

/// A sample is one document, or a pack of several whole ones (best_fit), and padding up to its length. What a
/// document has beyond that length is left out, as trl does. position_ids begin anew with each document and
/// with the padding. Without packing, attention_mask is 0 where the padding is.
class Documents final : public SampleSource {
 public:
  Documents(std::unique_ptr<DocumentSource> source, std::int64_t length, bool are_packed)
      : source_(std::move(source)), length_(length) {
    std::vector<const char*> names = {kTokensField, kLabelsField, kPositionsField};
    if (!are_packed) names.push_back(kAttentionField);
    for (const char* name : names) {
      fields_.push_back({name,
                         ckpt::DType::kInt64,
                         {length},
                         static_cast<std::size_t>(length) * ckpt::item_bytes(ckpt::DType::kInt64)});
    }
    for (std::int64_t document = 0; document < source_->size(); ++document) {
      kept_ += kept_of(document);
      cut_ += source_->length(document) > length_ ? 1 : 0;
    }
    if (are_packed) pack();
  }

  std::int64_t size() const override { return packs_ ? packs_->size() : source_->size(); }
  std::string size_text() const override {
    return fmt::format("{} documents of {} tokens make {} samples of {}", source_->size(), source_->tokens(),
                       size(), length_);
  }
  std::string left_out() const override {
    if (cut_ == 0) return {};
    return fmt::format(
        "{} of {} documents have more than {} tokens; what they have beyond them is left out, "
        "{} of {} tokens",
        cut_, source_->size(), length_, source_->tokens() - kept_, source_->tokens());
  }
  std::int64_t sequence_length() const override { return length_; }
  std::string tokenizer() const override { return source_->tokenizer(); }
  const std::vector<SampleField>& fields() const override { return fields_; }

  std::int64_t length(std::int64_t sample) const override {
    std::int64_t tokens = 0;
    for (const std::uint32_t document : documents_of(sample)) tokens += kept_of(document);
    return tokens;
  }
  void read(std::int64_t sample, Labels labels, std::span<const std::span<std::byte>> out) const override {
    const auto length = static_cast<std::size_t>(length_);
    std::vector<std::int64_t> tokens(length, source_->padding());
    std::vector<std::int64_t> label_of(length, kIgnoredLabel);
    std::vector<std::int64_t> positions(length);
    std::vector<std::int64_t> attention(length, 0);
    std::size_t begin = 0;
    for (const std::uint32_t document : documents_of(sample)) {
      const auto count = static_cast<std::size_t>(kept_of(document));
      const std::span<std::int64_t> its_tokens = std::span(tokens).subspan(begin, count);
      source_->read_tokens(document, its_tokens);
      if (!out[kLabelsAt].empty())
        read_labels(document, labels, its_tokens, std::span(label_of).subspan(begin, count));
      std::iota(positions.begin() + static_cast<std::ptrdiff_t>(begin), positions.end(), std::int64_t{0});
      std::fill_n(attention.begin() + static_cast<std::ptrdiff_t>(begin), count, std::int64_t{1});
      begin += count;
    }
    std::iota(positions.begin() + static_cast<std::ptrdiff_t>(begin), positions.end(), std::int64_t{0});
    const auto copy = [&](std::size_t field, const std::vector<std::int64_t>& values) {
      if (field < out.size() && !out[field].empty())
        std::memcpy(out[field].data(), values.data(), out[field].size());
    };
    copy(kTokensAt, tokens);
    copy(kLabelsAt, label_of);
    copy(kPositionsAt, positions);
    copy(kAttentionAt, attention);
  }

  void set_vocabularies(std::map<std::string, std::int64_t> tokens) override {
    const auto found = tokens.find(kTokensField);
    if (found != tokens.end()) source_->set_vocabulary(found->second);
  }
  std::string position(std::int64_t sample) const override {
    const auto documents = documents_of(sample);
    std::string first = source_->position(documents.front());
    if (documents.size() == 1) return first;
    return fmt::format("{}, the first of {} in the sample", first, documents.size());
  }
  std::vector<const DataFile*> files_of(std::int64_t sample) const override {
    std::vector<const DataFile*> files;
    for (const std::uint32_t document : documents_of(sample)) files.push_back(&source_->file_of(document));
    std::sort(files.begin(), files.end());
    files.erase(std::unique(files.begin(), files.end()), files.end());
    return files;
  }
  void accept_changes() const override { source_->accept_changes(); }
  std::uint32_t fingerprint() const override { return fingerprint_of_samples(*this); }

  /// Throws Error (kUsage) if no sample has a label that counts. Reads up to the first one.
  void require_labels() const {
    std::vector<std::byte> mask;
    for (std::int64_t document = 0; document < source_->size(); ++document) {
      check_interrupted();
      mask.resize(static_cast<std::size_t>(kept_of(document)));
      source_->read_mask(document, mask);
      if (std::any_of(mask.begin() + 1, mask.end(), [](std::byte byte) { return byte != std::byte{0}; }))
        return;
    }
    const std::string in_length =
        cut_ == 0 ? "" : fmt::format(" among the first {} of each document", length_);
    throw Error(ErrorKind::kUsage, fmt::format("no token counts as a label{}", in_length))
        .hint(cut_ == 0
                  ? "a document's first token never counts; are completions or answers of the assistant "
                    "in the records?"
                  : "use a larger sequence_length");
  }

 private:
  void pack() {
    std::vector<std::uint32_t> lengths;
    lengths.reserve(static_cast<std::size_t>(source_->size()));
    for (std::int64_t document = 0; document < source_->size(); ++document)
      lengths.push_back(static_cast<std::uint32_t>(kept_of(document)));
    packs_ = pack_best_fit(lengths, length_);
  }

  [[nodiscard]] std::int64_t kept_of(std::int64_t document) const {
    return std::min(source_->length(document), length_);
  }

  [[nodiscard]] std::vector<std::uint32_t> documents_of(std::int64_t sample) const {
    if (sample < 0 || sample >= size()) throw Error(ErrorKind::kFailure, "reading past the end of the data");
    if (!packs_) return {static_cast<std::uint32_t>(sample)};
    const auto documents = packs_->pack(sample);
    return {documents.begin(), documents.end()};
  }

  /// Fills `out` with the labels of the first tokens of a document. The label of a document's last token
  /// would be the first of the next one, which never counts.
  void read_labels(std::uint32_t document, Labels labels, std::span<const std::int64_t> tokens,
                   std::span<std::int64_t> out) const {
    std::vector<std::byte> mask(tokens.size());
    source_->read_mask(document, mask);
    const std::size_t shift = labels == Labels::kInputs ? 0 : 1;
    for (std::size_t i = 1; i < tokens.size(); ++i) {
      if (mask[i] != std::byte{0}) out[i - shift] = tokens[i];
    }
  }

  std::unique_ptr<DocumentSource> source_;
  std::int64_t length_;
  std::vector<SampleField> fields_;
  std::optional<Packs> packs_;
  std::int64_t kept_ = 0;  ///< The tokens that samples have.
  std::int64_t cut_ = 0;   ///< The documents of which a part is left out.
};

}  // namespace

std::unique_ptr<SampleSource> open_documents(const config::DataSource& source) {
  if (source.sequence_length > std::numeric_limits<std::uint32_t>::max())
    throw Error(ErrorKind::kUsage, fmt::format("sequence_length is {}, and documents have at most 2^32 - 1 "
                                               "tokens in a sample",
                                               source.sequence_length));
  std::unique_ptr<DocumentSource> files;
  if (is_arrow(source.path)) {
    files = open_arrow_documents(source.path);
  } else {
    files = std::make_unique<DocumentFiles>(DocumentFiles::open(source.path));
  }
  const bool are_packed = source.packing == "best_fit";
  if (are_packed) {
    check_metadata_bytes("the packing of the documents",
                         static_cast<std::uint64_t>(files->size()) * kBytesPerDocument);
  }
  auto documents = std::make_unique<Documents>(std::move(files), source.sequence_length, are_packed);
  documents->require_labels();
  return documents;
}

}  // namespace accel
