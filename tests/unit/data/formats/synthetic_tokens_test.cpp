#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "base/error.hpp"
#include "data/formats/data_formats.hpp"
#include "data/formats/sample_source.hpp"

namespace accel {
namespace {

using Tokens = std::vector<std::int64_t>;

std::unique_ptr<SampleSource> open_synthetic(std::int64_t vocabulary, std::int64_t samples,
                                             std::int64_t length) {
  config::DataSource source;
  source.format = "synthetic";
  source.sequence_length = length;
  source.vocabulary = vocabulary;
  source.samples = samples;
  return data_format("synthetic").open(source);
}

/// The inputs of a sample, and its labels behind them.
Tokens fields_of(const SampleSource& source, std::int64_t sample, Labels labels) {
  const auto length = static_cast<std::size_t>(source.sequence_length());
  Tokens values(2 * length);
  const std::vector<std::span<std::byte>> out = {std::as_writable_bytes(std::span(values).first(length)),
                                                 std::as_writable_bytes(std::span(values).last(length))};
  source.read(sample, labels, out);
  return values;
}

TEST(SyntheticTokensTest, ASampleIsAFunctionOfItsNumber) {
  const auto source = open_synthetic(50000, 1'000'000'000'000, 16);
  const auto other = open_synthetic(50000, 100, 16);
  EXPECT_EQ(source->size(), 1'000'000'000'000);
  EXPECT_EQ(source->size_text(), "1000000000000 samples of 16 random tokens");
  EXPECT_TRUE(source->files_of(7).empty());
  std::set<Tokens> seen;
  for (std::int64_t sample = 0; sample < 100; ++sample) {
    const Tokens tokens = fields_of(*source, sample, Labels::kNextTokens);
    EXPECT_EQ(tokens, fields_of(*other, sample, Labels::kNextTokens));
    seen.insert(tokens);
  }
  seen.insert(fields_of(*source, 999'999'999'999, Labels::kNextTokens));
  EXPECT_EQ(seen.size(), 101U);
}

TEST(SyntheticTokensTest, LabelsAreTheNextTokensOrTheInputs) {
  const auto source = open_synthetic(1000, 10, 8);
  const Tokens next = fields_of(*source, 3, Labels::kNextTokens);
  EXPECT_TRUE(std::equal(next.begin() + 1, next.begin() + 8, next.begin() + 8));
  const Tokens inputs = fields_of(*source, 3, Labels::kInputs);
  EXPECT_TRUE(std::equal(inputs.begin(), inputs.begin() + 8, inputs.begin() + 8));
  EXPECT_TRUE(std::equal(inputs.begin(), inputs.begin() + 8, next.begin()));
}

// With n draws of probability p, a count is n p, and six of its standard deviations are not left by chance.
TEST(SyntheticTokensTest, EachTokenIsAsFrequentAsAnother) {
  constexpr std::size_t kVocabulary = 10;
  constexpr double kDraws = 100 * 1000;
  const auto source = open_synthetic(kVocabulary, 100, 1000);
  std::vector<double> counts(kVocabulary);
  for (std::int64_t sample = 0; sample < 100; ++sample) {
    const Tokens tokens = fields_of(*source, sample, Labels::kInputs);
    for (std::size_t i = 0; i < 1000; ++i) ++counts.at(static_cast<std::size_t>(tokens[i]));
  }
  const double expected = kDraws / kVocabulary;
  const double deviation = std::sqrt(expected * (1 - 1.0 / kVocabulary));
  for (const double count : counts) EXPECT_NEAR(count, expected, 6 * deviation);
}

TEST(SyntheticTokensTest, ReachesTheLargestTokens) {
  const auto source = open_synthetic(std::int64_t{1} << 32, 1, 1000);
  const Tokens tokens = fields_of(*source, 0, Labels::kInputs);
  EXPECT_GE(*std::min_element(tokens.begin(), tokens.end()), 0);
  EXPECT_LT(*std::max_element(tokens.begin(), tokens.end()), std::int64_t{1} << 32);
  EXPECT_GT(*std::max_element(tokens.begin(), tokens.end()), std::int64_t{1} << 31);
  EXPECT_EQ(fields_of(*open_synthetic(1, 1, 4), 0, Labels::kInputs), Tokens(8));
}

TEST(SyntheticTokensTest, AModelMustKnowTheTokens) {
  const auto source = open_synthetic(100, 10, 8);
  EXPECT_NO_THROW(source->set_vocabularies({{"input_ids", 100}}));
  EXPECT_NO_THROW(source->set_vocabularies({{"other", 99}}));
  EXPECT_THROW(source->set_vocabularies({{"input_ids", 99}}), Error);
}

TEST(SyntheticTokensTest, AnotherVocabularyIsAnotherFingerprint) {
  EXPECT_EQ(open_synthetic(100, 10, 8)->fingerprint(), open_synthetic(100, 10, 8)->fingerprint());
  EXPECT_NE(open_synthetic(100, 10, 8)->fingerprint(), open_synthetic(101, 10, 8)->fingerprint());
}

}  // namespace
}  // namespace accel
