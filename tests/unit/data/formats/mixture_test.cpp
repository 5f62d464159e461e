#include "data/formats/mixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "data/formats/data_formats.hpp"
#include "temp_dir.hpp"

namespace accel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TempDir;
using testing::write_file;

class MixtureTest : public ::testing::Test {
 protected:
  MixtureTest() {
    write_file(dir_ / "a", "abcdefg");  // Three samples of two tokens, and a label behind them.
    write_file(dir_ / "b", "ABCDE");    // Two.
  }

  std::unique_ptr<SampleSource> open(double a, double b) const {
    config::DataSource source{"text", "", 2};
    source.mixture = {{(dir_ / "a").string(), a}, {(dir_ / "b").string(), b}};
    return open_data(source);
  }

  static std::string text_of(const SampleSource& source, std::int64_t sample) {
    std::vector<std::int64_t> tokens(2);
    const std::vector<std::span<std::byte>> out = {std::as_writable_bytes(std::span(tokens)), {}};
    source.read(sample, Labels::kNextTokens, out);
    return {static_cast<char>(tokens[0]), static_cast<char>(tokens[1])};
  }

  static std::vector<std::string> texts_of(const SampleSource& source) {
    std::vector<std::string> texts;
    for (std::int64_t i = 0; i < source.size(); ++i) texts.push_back(text_of(source, i));
    return texts;
  }

  std::string error_of(double a, double b) const {
    try {
      (void)open(a, b);
    } catch (const Error& error) {
      return error.message();
    }
    return {};
  }

  TempDir dir_;
};

TEST_F(MixtureTest, EachSourceHasItsPartAndNoSampleIsLeftOut) {
  EXPECT_THAT(texts_of(*open(1, 1)), ElementsAre("ab", "cd", "ef", "AB", "CD", "CD"));
  EXPECT_THAT(texts_of(*open(0.2, 0.1)), ElementsAre("ab", "cd", "ef", "cd", "AB", "CD"))
      << "the two of b are a third";
  EXPECT_THAT(texts_of(*open(6, 4)), ElementsAre("ab", "cd", "ef", "AB", "CD"));
  EXPECT_EQ(open(1, 9)->size(), 30);
}

TEST_F(MixtureTest, APartOfTheSamplesThatComesAgainIsSpreadOverThem) {
  write_file(dir_ / "a", "abcdefghijk");  // Five samples.
  write_file(dir_ / "b", "ABCDE");        // Two.
  EXPECT_THAT(texts_of(*open(1, 1)), ElementsAre("ab", "cd", "ef", "gh", "ij", "AB", "CD", "AB", "CD", "CD"));
  write_file(dir_ / "b", "ABCDEFGHIJKLMNOPQ");  // Eight.
  const auto source = open(1, 1);
  EXPECT_EQ(source->size(), 16);
  EXPECT_EQ(text_of(*source, 5) + text_of(*source, 6) + text_of(*source, 7), "abefij");
}

TEST_F(MixtureTest, ASampleIsWhereItsSourceHasIt) {
  const auto source = open(1, 1);
  EXPECT_EQ(source->files_of(2).front()->path(), (dir_ / "a").string());
  EXPECT_EQ(source->files_of(5).front()->path(), (dir_ / "b").string());
  EXPECT_EQ(source->position(5), "sample 1");
  EXPECT_THAT(source->size_text(), HasSubstr("6 samples, 3 of the 3 samples of '"));
  EXPECT_THAT(source->size_text(), HasSubstr("3 of the 2 samples of '"));
  EXPECT_THROW((void)text_of(*source, 6), Error);
  EXPECT_THROW((void)text_of(*source, -1), Error);
}

TEST_F(MixtureTest, VocabulariesAreThoseOfAllSources) {
  const auto source = open(1, 1);
  source->set_vocabularies({{kTokensField, 'D'}});
  EXPECT_EQ(text_of(*source, 3), "AB");
  EXPECT_THROW((void)text_of(*source, 0), Error);
  EXPECT_THROW((void)text_of(*source, 4), Error);
}

TEST_F(MixtureTest, TheFingerprintKnowsDataAndParts) {
  const std::uint32_t before = open(1, 1)->fingerprint();
  EXPECT_EQ(open(2, 2)->fingerprint(), before);
  EXPECT_NE(open(2, 1)->fingerprint(), before) << "as many samples, of which others have more";
  write_file(dir_ / "b", "ABCDF");
  EXPECT_NE(open(1, 1)->fingerprint(), before);
}

TEST_F(MixtureTest, WhatCannotBeMixedIsRefused) {
  EXPECT_THAT(error_of(1, 1e-15), HasSubstr("samples are needed"));
  write_file(dir_ / "b", "AB");
  EXPECT_THAT(error_of(1, 1), HasSubstr("2 tokens make 0 samples of 2"));
}

TEST_F(MixtureTest, SaysHowOftenEachSourceComes) {
  const std::vector<MixedSource> sources = open(1, 3)->mixed();
  ASSERT_EQ(sources.size(), 2U);
  EXPECT_EQ(sources[0].repeats(), 1);
  EXPECT_EQ(sources[1].samples, 2);
  EXPECT_EQ(sources[1].taken, 9);
  EXPECT_EQ(sources[1].repeats(), 4.5);
}

/// One sample, made by a tokenizer that says what it is, or does not.
class OneSample final : public SampleSource {
 public:
  explicit OneSample(std::string tokenizer) : tokenizer_(std::move(tokenizer)) {}

  std::int64_t size() const override { return 1; }
  std::string size_text() const override { return "1 sample"; }
  std::string tokenizer() const override { return tokenizer_; }
  const std::vector<SampleField>& fields() const override { return fields_; }
  void read(std::int64_t, Labels, std::span<const std::span<std::byte>>) const override {}
  void set_vocabularies(std::map<std::string, std::int64_t>) override {}
  std::string position(std::int64_t) const override { return "the sample"; }
  std::vector<const DataFile*> files_of(std::int64_t) const override { return {}; }
  void accept_changes() const override {}
  std::uint32_t fingerprint() const override { return 0; }

 private:
  std::string tokenizer_;
  std::vector<SampleField> fields_;
};

// A file of accel-export --tokenize names its tokenizer, and a dataset on disk does not.
TEST_F(MixtureTest, ASourceWithoutATokenizerGoesWithAnyOther) {
  const auto mixed = [](const std::vector<std::string>& tokenizers) {
    std::vector<config::MixturePart> parts;
    std::vector<std::unique_ptr<SampleSource>> sources;
    for (const std::string& tokenizer : tokenizers) {
      parts.push_back({"file " + std::to_string(parts.size()), 1});
      sources.push_back(std::make_unique<OneSample>(tokenizer));
    }
    return mix(parts, std::move(sources));
  };
  EXPECT_EQ(mixed({"", "a", "", "a"})->size(), 4);
  try {
    (void)mixed({"", "a", "b"});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("'file 2' was made with another tokenizer than 'file 1'"));
  }
}

}  // namespace
}  // namespace accel
