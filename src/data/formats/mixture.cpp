#include "data/formats/mixture.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "ckpt/io/crc32.hpp"

namespace accel {
namespace {

/// More samples than this are a mistake in the weights.
constexpr double kMostSamples = 1e15;

bool are_equal(const std::vector<SampleField>& a, const std::vector<SampleField>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const SampleField& x, const SampleField& y) {
    if (x.name != y.name) return false;
    // A field that one source cannot read is a field of no sample (fields_of), whatever it is elsewhere.
    if (!x.obstacle.empty() || !y.obstacle.empty()) return true;
    return x.dtype == y.dtype && x.shape == y.shape && x.bytes == y.bytes;
  });
}

class Mixture final : public SampleSource {
 public:
  struct Part {
    std::string path;
    std::unique_ptr<SampleSource> source;
    std::int64_t end = 0;  ///< The first sample behind those of the part.
  };

  explicit Mixture(std::vector<Part> parts) : parts_(std::move(parts)), fields_(fields_of(parts_)) {}

  std::int64_t size() const override { return parts_.back().end; }
  std::string size_text() const override {
    std::vector<std::string> texts;
    for (const MixedSource& its : mixed())
      texts.push_back(fmt::format("{} of the {} samples of '{}'", its.taken, its.samples, its.path));
    return fmt::format("{} samples, {}", size(), fmt::join(texts, ", "));
  }
  std::vector<MixedSource> mixed() const override {
    std::vector<MixedSource> sources;
    for (std::size_t i = 0; i < parts_.size(); ++i)
      sources.push_back({parts_[i].path, parts_[i].source->size(), parts_[i].end - begin_of(i)});
    return sources;
  }
  std::string left_out() const override {
    std::string text;
    for (const Part& part : parts_) {
      const std::string its = part.source->left_out();
      if (!its.empty()) text += fmt::format("{}'{}': {}", text.empty() ? "" : "; ", part.path, its);
    }
    return text;
  }
  std::int64_t sequence_length() const override { return parts_.front().source->sequence_length(); }
  std::string tokenizer() const override { return parts_.front().source->tokenizer(); }
  const std::vector<SampleField>& fields() const override { return fields_; }

  std::int64_t length(std::int64_t sample) const override {
    const auto [source, its] = place_of(sample);
    return source->length(its);
  }
  void read(std::int64_t sample, Labels labels, std::span<const std::span<std::byte>> out) const override {
    const auto [source, its] = place_of(sample);
    source->read(its, labels, out);
  }
  void set_vocabularies(std::map<std::string, std::int64_t> tokens) override {
    for (const Part& part : parts_) part.source->set_vocabularies(tokens);
  }
  std::string position(std::int64_t sample) const override {
    const auto [source, its] = place_of(sample);
    return source->position(its);
  }
  std::vector<const DataFile*> files_of(std::int64_t sample) const override {
    const auto [source, its] = place_of(sample);
    return source->files_of(its);
  }
  void accept_changes() const override {
    for (const Part& part : parts_) part.source->accept_changes();
  }
  /// A CRC-32 of the sources' fingerprints, of how many samples each has and of how they are repeated.
  std::uint32_t fingerprint() const override {
    std::string text = "spread ";
    for (const Part& part : parts_) text += fmt::format("{}:{} ", part.end, part.source->fingerprint());
    return ckpt::crc32(std::as_bytes(std::span(text)));
  }

 private:
  /// The fields of the first part. A field that some part cannot read has the obstacle of that part.
  static std::vector<SampleField> fields_of(const std::vector<Part>& parts) {
    std::vector<SampleField> fields = parts.front().source->fields();
    for (std::size_t i = 0; i < fields.size(); ++i) {
      const auto blocked = std::find_if(parts.begin(), parts.end(), [&](const Part& part) {
        return !part.source->fields()[i].obstacle.empty();
      });
      if (blocked == parts.end()) continue;
      fields[i].shape.clear();
      fields[i].bytes = 0;
      fields[i].obstacle = fmt::format("of '{}' {}", blocked->path, blocked->source->fields()[i].obstacle);
    }
    return fields;
  }

  [[nodiscard]] std::int64_t begin_of(std::size_t part) const { return part == 0 ? 0 : parts_[part - 1].end; }

  /// The source that has a sample, and the sample's number there.
  [[nodiscard]] std::pair<const SampleSource*, std::int64_t> place_of(std::int64_t sample) const {
    const auto found =
        std::find_if(parts_.begin(), parts_.end(), [&](const Part& part) { return sample < part.end; });
    if (sample < 0 || found == parts_.end())
      throw Error(ErrorKind::kFailure, "reading past the end of the data");
    const std::int64_t begin = begin_of(static_cast<std::size_t>(found - parts_.begin()));
    return {found->source.get(), repeated(sample - begin, found->end - begin, found->source->size())};
  }

  /// The number, of `size`, that comes at place `at` of `count`.
  static std::int64_t repeated(std::int64_t at, std::int64_t count, std::int64_t size) {
    const std::int64_t rest = count % size;
    if (at < count - rest) return at % size;
    __extension__ using Wide = __int128;  // Holds products of two sizes.
    const Wide place = at - (count - rest);
    return static_cast<std::int64_t>((2 * place + 1) * size / (Wide{2} * rest));  // The middle of its part.
  }

  std::vector<Part> parts_;
  std::vector<SampleField> fields_;
};

}  // namespace

std::unique_ptr<SampleSource> mix(const std::vector<config::MixturePart>& parts,
                                  std::vector<std::unique_ptr<SampleSource>> sources) {
  double weights = 0;
  for (const config::MixturePart& part : parts) weights += part.weight;
  double most = 0;
  std::string tokenizer;  // That of source `first`.
  std::size_t first = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (sources[i]->size() == 0)
      throw Error(ErrorKind::kUsage, fmt::format("'{}': {}", parts[i].path, sources[i]->size_text()));
    if (!are_equal(sources[i]->fields(), sources.front()->fields())) {
      throw Error(ErrorKind::kUsage, fmt::format("the samples of '{}' and '{}' differ in their fields",
                                                 parts.front().path, parts[i].path))
          .hint("the sources of a mixture need the same fields, with equal dtypes and shapes");
    }
    // A dataset does not say which tokenizer made it.
    if (tokenizer.empty()) {
      tokenizer = sources[i]->tokenizer();
      first = i;
    }
    if (!sources[i]->tokenizer().empty() && sources[i]->tokenizer() != tokenizer) {
      throw Error(ErrorKind::kUsage, fmt::format("'{}' was made with another tokenizer than '{}'",
                                                 parts[i].path, parts[first].path))
          .hint("tokenize all files with the tokenizer of the model");
    }
    most = std::max(most, static_cast<double>(sources[i]->size()) / (parts[i].weight / weights));
  }
  if (!(most <= kMostSamples)) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{:g} samples are needed for each sample of all sources to be there", most))
        .hint("give a large source a larger weight");
  }
  std::vector<Mixture::Part> mixed;
  std::int64_t end = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto wanted = std::llround(most * (parts[i].weight / weights));
    end += std::max<std::int64_t>(wanted, sources[i]->size());
    mixed.push_back({parts[i].path, std::move(sources[i]), end});
  }
  return std::make_unique<Mixture>(std::move(mixed));
}

}  // namespace accel
