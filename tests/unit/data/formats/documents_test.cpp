#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "data/formats/data_formats.hpp"
#include "data/formats/document_files.hpp"
#include "data/formats/sample_source.hpp"
#include "temp_dir.hpp"

namespace accel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TempDir;
using testing::write_file;

/// What a file of documents has. The defaults are three documents: 10 11 12 13, 20 21 and 30 31 32, of which
/// the middle of the first, all of the second and the last of the third count.
struct Content {
  std::vector<std::uint16_t> tokens = {10, 11, 12, 13, 20, 21, 30, 31, 32};
  std::vector<std::uint8_t> mask = {0, 1, 1, 0, 1, 1, 0, 0, 1};
  std::vector<std::int64_t> lengths = {4, 2, 3};
  std::string metadata = R"({"format":"accel.documents","pad_token_id":"7","largest_token":"32"})";
  std::string dtype = "U16";
};

template <class Value>
std::string bytes_of(const std::vector<Value>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Value)};
}

std::string entry(const std::string& name, const std::string& dtype, std::size_t count, std::size_t begin,
                  std::size_t bytes) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":[" + std::to_string(count) +
         "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(begin + bytes) + "]}";
}

std::string file_of(const Content& content) {
  const std::string lengths = bytes_of(content.lengths);
  const std::string tokens = bytes_of(content.tokens);
  const std::string mask = bytes_of(content.mask);
  const std::size_t count =
      content.dtype == "U32" || content.dtype == "I32" ? content.tokens.size() / 2 : content.tokens.size();
  const std::string json =
      "{\"__metadata__\":" + content.metadata + "," +
      entry("lengths", "I64", content.lengths.size(), 0, lengths.size()) + "," +
      entry("input_ids", content.dtype, count, lengths.size(), tokens.size()) + "," +
      entry("label_mask", "U8", content.mask.size(), lengths.size() + tokens.size(), mask.size()) + "}";
  const std::uint64_t bytes = json.size();
  std::string text(sizeof bytes, '\0');
  std::memcpy(text.data(), &bytes, sizeof bytes);
  return text + json + lengths + tokens + mask;
}

class DocumentsTest : public ::testing::Test {
 protected:
  std::unique_ptr<SampleSource> open(std::int64_t length, const std::string& packing) {
    return data_format("documents")
        .open({"documents", (dir_ / "*.safetensors").string(), length, "", packing});
  }
  void write(const std::string& name, const Content& content) {
    write_file(dir_ / (name + ".safetensors"), file_of(content));
  }
  std::string refusal(const Content& content, std::int64_t length = 4) {
    write("a", content);
    try {
      (void)open(length, "none");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      return error.message();
    }
    return "nothing";
  }

  TempDir dir_;
};

std::vector<std::int64_t> values_of(const SampleSource& source, std::int64_t sample, const std::string& name,
                                    Labels labels = Labels::kNextTokens) {
  std::vector<std::span<std::byte>> out(source.fields().size());
  std::vector<std::int64_t> values(static_cast<std::size_t>(source.sequence_length()), 12345);
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (source.fields()[i].name == name) out[i] = std::as_writable_bytes(std::span(values));
  }
  source.read(sample, labels, out);
  return values;
}

TEST_F(DocumentsTest, ADocumentIsASampleWithPaddingBehindIt) {
  write("a", {});
  const auto source = open(4, "none");
  ASSERT_EQ(source->size(), 3);
  EXPECT_EQ(source->left_out(), "");
  EXPECT_THAT(values_of(*source, 1, "input_ids"), ElementsAre(20, 21, 7, 7));
  EXPECT_THAT(values_of(*source, 1, "attention_mask"), ElementsAre(1, 1, 0, 0));
  EXPECT_THAT(values_of(*source, 1, "position_ids"), ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(values_of(*source, 0, "labels"), ElementsAre(11, 12, -100, -100));
  EXPECT_THAT(values_of(*source, 0, "labels", Labels::kInputs), ElementsAre(-100, 11, 12, -100));
  // The first token of a document does not count, even if its mask says so.
  EXPECT_THAT(values_of(*source, 1, "labels"), ElementsAre(21, -100, -100, -100));
  EXPECT_THAT(values_of(*source, 1, "labels", Labels::kInputs), ElementsAre(-100, 21, -100, -100));
  EXPECT_THROW((void)values_of(*source, 3, "labels"), Error);
}

TEST_F(DocumentsTest, ShorterSpansGetTheFirstTokens) {
  write("a", {});
  const auto source = open(4, "none");
  EXPECT_EQ(source->length(0), 4);
  EXPECT_EQ(source->length(1), 2);
  std::vector<std::int64_t> tokens(2, 12345);
  std::vector<std::int64_t> labels(3, 12345);
  std::vector<std::span<std::byte>> out(source->fields().size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (source->fields()[i].name == "input_ids") out[i] = std::as_writable_bytes(std::span(tokens));
    if (source->fields()[i].name == "labels") out[i] = std::as_writable_bytes(std::span(labels));
  }
  source->read(1, Labels::kNextTokens, out);
  EXPECT_THAT(tokens, ElementsAre(20, 21));
  EXPECT_THAT(labels, ElementsAre(21, -100, -100));
  EXPECT_EQ(open(6, "best_fit")->length(0), 6);
  EXPECT_EQ(open(3, "none")->length(0), 3) << "what is left out is not there";
}

TEST_F(DocumentsTest, APackHasWholeDocumentsThatLabelsDoNotLeave) {
  write("a", {});
  const auto source = open(6, "best_fit");
  ASSERT_EQ(source->size(), 2);
  EXPECT_EQ(source->size_text(), "3 documents of 9 tokens make 2 samples of 6");
  EXPECT_EQ(source->fields().size(), 3u) << "a pack has no attention_mask";
  EXPECT_THAT(values_of(*source, 0, "input_ids"), ElementsAre(10, 11, 12, 13, 20, 21));
  EXPECT_THAT(values_of(*source, 0, "position_ids"), ElementsAre(0, 1, 2, 3, 0, 1));
  EXPECT_THAT(values_of(*source, 0, "labels"), ElementsAre(11, 12, -100, -100, 21, -100));
  EXPECT_THAT(values_of(*source, 0, "labels", Labels::kInputs), ElementsAre(-100, 11, 12, -100, -100, 21));
  EXPECT_THAT(values_of(*source, 1, "input_ids"), ElementsAre(30, 31, 32, 7, 7, 7));
  EXPECT_THAT(values_of(*source, 1, "position_ids"), ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_EQ(source->position(0), "data file '" + (dir_ / "a.safetensors").string() +
                                     "', document 0, the first of 2 in the sample");
}

TEST_F(DocumentsTest, WhatIsBehindTheSequenceLengthIsLeftOut) {
  write("a", {});
  const auto source = open(3, "best_fit");
  EXPECT_EQ(
      source->left_out(),
      "1 of 3 documents have more than 3 tokens; what they have beyond them is left out, 1 of 9 tokens");
  EXPECT_THAT(values_of(*source, 0, "input_ids"), ElementsAre(10, 11, 12));
  EXPECT_THAT(values_of(*source, 0, "labels"), ElementsAre(11, 12, -100));
}

TEST_F(DocumentsTest, DocumentsGoOnInTheNextFile) {
  write("a", {});
  Content more;
  more.tokens = {40, 0, 41, 0};  // As uint32.
  more.mask = {1, 1};
  more.lengths = {2};
  more.dtype = "U32";
  more.metadata = "{}";
  write("b", more);
  const auto source = open(4, "none");
  ASSERT_EQ(source->size(), 4);
  EXPECT_THAT(values_of(*source, 3, "input_ids"), ElementsAre(40, 41, 7, 7));
  EXPECT_THAT(values_of(*source, 3, "labels"), ElementsAre(41, -100, -100, -100));
  EXPECT_EQ(source->position(3), "data file '" + (dir_ / "b.safetensors").string() + "', document 0");
  EXPECT_EQ(source->files_of(3).size(), 1u);
  EXPECT_EQ(open(11, "best_fit")->files_of(0).size(), 2u);
  more.metadata = R"({"tokenizer_sha256":"1"})";
  write("b", more);
  EXPECT_THROW((void)open(4, "none"), Error) << "another tokenizer";
}

TEST_F(DocumentsTest, TheFingerprintSeesTokensMaskAndPacking) {
  write("a", {});
  const auto taken = [&] { return open(6, "best_fit")->fingerprint(); };
  const std::uint32_t first = taken();
  EXPECT_EQ(taken(), first);
  EXPECT_NE(open(6, "none")->fingerprint(), first);
  EXPECT_NE(open(7, "best_fit")->fingerprint(), first);
  Content other;
  other.mask[2] = 0;
  write("a", other);
  EXPECT_NE(taken(), first);
  other = {};
  other.tokens[8] = 31;
  write("a", other);
  EXPECT_NE(taken(), first);
}

/// A tokenizer may have a token for padding that its model lacks.
TEST_F(DocumentsTest, PaddingOutsideTheVocabularyIsToken0) {
  Content content;
  content.metadata = R"({"pad_token_id":"33","largest_token":"32"})";
  write("a", content);
  const auto source = open(4, "none");
  source->set_vocabularies({{"input_ids", 34}});
  EXPECT_THAT(values_of(*source, 1, "input_ids"), ElementsAre(20, 21, 33, 33));
  source->set_vocabularies({{"input_ids", 33}});
  EXPECT_THAT(values_of(*source, 1, "input_ids"), ElementsAre(20, 21, 0, 0));
}

TEST_F(DocumentsTest, ATokenOutsideTheVocabularyIsNamed) {
  write("a", {});
  const auto message = [&](std::int64_t vocabulary) {
    try {
      const auto source = open(4, "none");
      source->set_vocabularies({{"input_ids", vocabulary}});
      (void)values_of(*source, 2, "input_ids");
    } catch (const Error& error) {
      return error.message();
    }
    return std::string("nothing");
  };
  EXPECT_EQ(message(33), "nothing");
  EXPECT_THAT(message(32), HasSubstr("it has the token 32, which is not in the model's vocabulary of 32"));
  // Metadata that say too little do not let a token through.
  Content lying;
  lying.metadata = R"({"largest_token":"3"})";
  write("a", lying);
  EXPECT_THAT(message(32), HasSubstr("document 2: token 32 at position 2 of it is not in the model's"));
}

TEST_F(DocumentsTest, ANegativeNumberIsNotAToken) {
  Content content;
  content.tokens = {1, 0, 0xFFFF, 0xFFFF};  // 1 and -1 as int32.
  content.mask = {1, 1};
  content.lengths = {2};
  content.dtype = "I32";
  write("a", content);
  const auto source = open(4, "none");
  try {
    (void)values_of(*source, 0, "input_ids");
    FAIL() << "-1 was taken for a token";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("document 0: token -1 at position 1 of it is not a token"));
  }
}

TEST_F(DocumentsTest, FilesThatDoNotFitAreRefused) {
  const auto changed = [&](auto change) {
    Content content;
    change(content);
    return refusal(content);
  };
  EXPECT_EQ(changed([](Content&) {}), "nothing");
  EXPECT_THAT(changed([](Content& c) {
                c.lengths = {4, 2, 2};
              }),
              HasSubstr("'input_ids' has 9 tokens, but its documents have 8"));
  EXPECT_THAT(changed([](Content& c) {
                c.lengths = {4, 6};
              }),
              HasSubstr("the first 2 documents alone have more"));
  EXPECT_THAT(changed([](Content& c) {
                c.lengths = {4, INT64_MAX, INT64_MAX};
              }),
              HasSubstr("the first 2 documents alone have more"));
  EXPECT_THAT(changed([](Content& c) { c.lengths = {9, 0}; }), HasSubstr("document 1 has the length 0"));
  EXPECT_THAT(changed([](Content& c) {
                c.lengths = {10, -1};
              }),
              HasSubstr("the first 1 documents alone have more"));
  EXPECT_THAT(changed([](Content& c) { c.lengths = {}; }), HasSubstr("it holds no documents"));
  EXPECT_THAT(changed([](Content& c) { c.mask.pop_back(); }),
              HasSubstr("'label_mask' has 8 elements, but 'input_ids' has 9"));
  EXPECT_THAT(changed([](Content& c) { c.mask = {1, 0, 0, 0, 1, 0, 1, 0, 0}; }),
              HasSubstr("no token counts as a label"));
  EXPECT_THAT(changed([](Content& c) { c.dtype = "F16"; }),
              HasSubstr("'input_ids' is float16 in 1 dimensions; expected uint16 or int32 or"));
  EXPECT_THAT(changed([](Content& c) { c.metadata = R"({"pad_token_id":"-1"})"; }),
              HasSubstr("its metadata have pad_token_id '-1'"));
  Content late;
  late.mask = {0, 0, 0, 1, 0, 0, 0, 0, 0};
  EXPECT_THAT(refusal(late, 3), HasSubstr("no token counts as a label among the first 3 of each document"));
  write_file(dir_ / "a.safetensors", "not such a file");
  EXPECT_THROW((void)open(4, "none"), Error);
}

TEST_F(DocumentsTest, AFileIsRecognizedByItsMetadata) {
  write("a", {});
  EXPECT_TRUE(holds_documents((dir_ / "*.safetensors").string()));
  Content plain;
  plain.metadata = "{}";
  write("a", plain);
  EXPECT_FALSE(holds_documents((dir_ / "a.safetensors").string()));
  EXPECT_FALSE(holds_documents((dir_ / "absent").string()));
}

TEST_F(DocumentsTest, AFileThatBecomesShortIsNamed) {
  write("a", {});
  const auto source = open(4, "none");
  std::filesystem::resize_file(dir_ / "a.safetensors", 300);
  EXPECT_THROW((void)values_of(*source, 2, "labels"), Error);
  EXPECT_TRUE(source->files_of(0).front()->change().has_value());
}

}  // namespace
}  // namespace accel
