#include "data/arrow/arrow_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "arrow_bytes.hpp"
#include "base/error.hpp"
#include "data/formats/data_formats.hpp"
#include "data/formats/sample_source.hpp"
#include "temp_dir.hpp"

namespace accel {
namespace {

using testing::arrow_bytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::replaced;
using testing::TempDir;
using testing::write_file;

const std::string kEnd("\xff\xff\xff\xff\0\0\0\0", 8);
const std::string kOffsets("\0\0\0\0\3\0\0\0\6\0\0\0", 12);  // Of the lists in the first batch.

class ArrowFileTest : public ::testing::Test {
 protected:
  DataFile file_of(const std::string& bytes) {
    write_file(dir_ / "a.arrow", bytes);
    return DataFile((dir_ / "a.arrow").string());
  }
  std::unique_ptr<SampleSource> open(const std::string& bytes, const std::string& format = "arrow",
                                     std::int64_t length = 0) {
    std::filesystem::remove(dir_ / "a.arrow");  // ext4 syncs a file that is truncated and written again.
    write_file(dir_ / "a.arrow", bytes);
    return data_format(format).open({format, (dir_ / "a.arrow").string(), length, "", "none"});
  }
  std::string refusal(const std::string& bytes, const std::string& format = "arrow") {
    EXPECT_FALSE(bytes.empty());
    try {
      (void)open(bytes, format, 4);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage) << error.message();
      return error.message();
    }
    return "nothing";
  }

  TempDir dir_;
};

/// A stream whose schema has columns of int64. Their names, each of about `name_bytes`, overlap, and all
/// share `pairs` pairs of metadata, so that the schema is short.
std::string overlapping_schema(std::size_t fields, std::size_t name_bytes, std::size_t pairs) {
  std::string message;
  const auto set = [&](std::size_t at, std::size_t value) {
    for (std::size_t i = 0; i < 4; ++i) message[at + i] = static_cast<char>(value >> (8 * i));
  };
  const auto u32 = [&](std::size_t value) {
    message.resize(message.size() + 4);
    set(message.size() - 4, value);
    return message.size() - 4;
  };
  const auto list = [&](std::initializer_list<std::size_t> places) {  // The places of a table's fields.
    const std::size_t begin = message.size();
    for (const std::size_t place : places) message += {static_cast<char>(place), 0};
    message.resize((message.size() + 3) / 4 * 4);
    return begin;
  };
  const auto link = [&](std::size_t at) { set(at, message.size() - at); };
  const auto begin_table = [&](std::size_t places) { u32(message.size() - places); };
  u32(0);
  const std::size_t of_message = list({10, 12, 4, 6, 8});
  link(0);
  begin_table(of_message);
  message += std::string("\4\0\1\0", 4);  // V5, and that a schema follows.
  const std::size_t header = u32(0);
  const std::size_t of_schema = list({8, 8, 0, 4});
  link(header);
  begin_table(of_schema);
  const std::size_t columns = u32(0);
  const std::size_t of_field = list({18, 20, 4, 0, 8, 12, 0, 0, 16});
  link(columns);
  u32(fields);
  const std::size_t tables = message.size();
  message.resize(tables + 4 * fields);
  std::vector<std::size_t> names, types, metadata;
  for (std::size_t i = 0; i < fields; ++i) {
    link(tables + 4 * i);
    begin_table(of_field);
    names.push_back(u32(0));
    u32(2);  // The code of Int.
    types.push_back(u32(0));
    metadata.push_back(u32(0));
  }
  const std::size_t of_type = list({8, 12, 4, 8});
  for (const std::size_t at : types) link(at);
  begin_table(of_type);
  u32(64);
  u32(1);
  for (const std::size_t at : metadata) link(at);
  u32(pairs);
  const std::size_t first_pair = message.size();
  message.resize(first_pair + 4 * pairs);
  const std::size_t of_pair = list({4, 4});
  for (std::size_t i = 0; i < pairs; ++i) link(first_pair + 4 * i);
  begin_table(of_pair);
  // The word before a name is its length, and it is a part of the names before.
  for (std::size_t i = 0; i <= name_bytes / 4; ++i) {
    if (i < fields) link(names[i]);
    u32(name_bytes - 4 * i);
  }
  message.resize((message.size() + 7) / 8 * 8);
  std::string prefix("\xff\xff\xff\xff\0\0\0\0", 8);
  for (std::size_t i = 0; i < 4; ++i) prefix[4 + i] = static_cast<char>(message.size() >> (8 * i));
  return prefix + message + kEnd;
}

// 40 kB would take 24 MB, and a few MB some gigabytes; pairs would be looked at for hours.
TEST_F(ArrowFileTest, ASchemaDoesNotTakeMoreThanItSays) {
  const ArrowLayout layout = read_arrow_layout(file_of(overlapping_schema(3, 64, 2)));
  ASSERT_EQ(layout.columns.size(), 3U);
  EXPECT_EQ(layout.columns[2].name.size(), 56U);
  EXPECT_THAT(refusal(overlapping_schema(2000, 16000, 1)), HasSubstr("names of more than 16777216 bytes"));
  EXPECT_THAT(refusal(overlapping_schema(2000, 8004, 1000)),
              HasSubstr("more than 1000000 pairs of metadata"));
}

template <class Value>
std::vector<Value> values_of(const SampleSource& source, std::int64_t sample, const std::string& name) {
  std::vector<std::span<std::byte>> out(source.fields().size());
  std::vector<Value> values;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (source.fields()[i].name != name) continue;
    values.resize(source.fields()[i].bytes / sizeof(Value));
    out[i] = std::as_writable_bytes(std::span(values));
  }
  source.read(sample, Labels::kNextTokens, out);
  return values;
}

TEST_F(ArrowFileTest, TheLayoutSaysWhereRowsAre) {
  const DataFile file = file_of(arrow_bytes());
  const ArrowLayout layout = read_arrow_layout(file);
  ASSERT_EQ(layout.columns.size(), 3U);
  EXPECT_EQ(layout.columns[0].name, "input_ids");
  EXPECT_EQ(layout.columns[0].dtype, ckpt::DType::kInt32);
  ASSERT_EQ(layout.columns[0].lists.size(), 1U);
  EXPECT_EQ(layout.columns[0].lists[0].offset_bytes, 4U);
  EXPECT_EQ(layout.columns[1].obstacle, "has texts");
  EXPECT_EQ(layout.columns[2].dtype, ckpt::DType::kInt64);
  ASSERT_EQ(layout.batches.size(), 2U);
  EXPECT_EQ(layout.batches[0].rows, 2);
  EXPECT_EQ(layout.batches[1].rows, 1);
  const ArrowChunk& chunk = layout.batches[0].chunks[0];
  EXPECT_THAT(chunk.counts, ElementsAre(2, 6));
  EXPECT_FALSE(chunk.has_nulls);
  EXPECT_EQ(chunk.offsets_at[0], arrow_bytes().find(kOffsets));
  EXPECT_THAT(read_arrow_offsets(file, layout.columns[0], chunk, 0, 0, 2), ElementsAre(0, 3, 6));
  EXPECT_THAT(read_arrow_offsets(file, layout.columns[0], chunk, 0, 1, 1), ElementsAre(3, 6));
}

TEST_F(ArrowFileTest, RowsAreSamples) {
  const auto source = open(arrow_bytes());
  ASSERT_EQ(source->size(), 3);
  EXPECT_EQ(source->size_text(), "3 samples");
  ASSERT_EQ(source->fields().size(), 3U);
  EXPECT_EQ(source->fields()[2].obstacle, "has texts");
  EXPECT_THAT(values_of<std::int32_t>(*source, 1, "input_ids"), ElementsAre(21, 22, 23));
  EXPECT_THAT(values_of<std::int32_t>(*source, 2, "input_ids"), ElementsAre(31, 32, 33));
  EXPECT_THAT(values_of<std::int64_t>(*source, 2, "label"), ElementsAre(3));
  EXPECT_EQ(source->position(2), "data file '" + (dir_ / "a.arrow").string() + "', sample 2");
  EXPECT_THROW((void)values_of<std::int64_t>(*source, 3, "label"), Error);
  source->set_vocabularies({{"input_ids", 32}});
  EXPECT_NO_THROW((void)values_of<std::int32_t>(*source, 1, "input_ids"));
  EXPECT_THROW((void)values_of<std::int32_t>(*source, 2, "input_ids"), Error);
}

TEST_F(ArrowFileTest, RowsAreDocuments) {
  const auto source = open(arrow_bytes(), "documents", 4);
  ASSERT_EQ(source->size(), 3);
  EXPECT_THAT(values_of<std::int64_t>(*source, 2, "input_ids"), ElementsAre(31, 32, 33, 0));
  EXPECT_THAT(values_of<std::int64_t>(*source, 2, "labels"), ElementsAre(32, 33, -100, -100));
  EXPECT_THAT(values_of<std::int64_t>(*source, 2, "attention_mask"), ElementsAre(1, 1, 1, 0));
  EXPECT_THAT(source->position(2), HasSubstr("document 2"));
}

TEST_F(ArrowFileTest, DocumentsMayDifferInLengthAndRowsThatDoAreNoTensors) {
  const std::string other(std::string("\0\0\0\0\4\0\0\0\6\0\0\0", 12));
  const std::string bytes = replaced(arrow_bytes(), kOffsets, other);
  const auto rows = open(bytes);
  EXPECT_EQ(rows->fields()[0].obstacle, "has lists of different lengths, such as 4 and 2");
  EXPECT_EQ(rows->fields()[0].bytes, 0U);
  EXPECT_THAT(values_of<std::int64_t>(*rows, 1, "label"), ElementsAre(2));
  const auto documents = open(bytes, "documents", 4);
  EXPECT_THAT(values_of<std::int64_t>(*documents, 0, "input_ids"), ElementsAre(11, 12, 13, 21));
  EXPECT_THAT(values_of<std::int64_t>(*documents, 1, "input_ids"), ElementsAre(22, 23, 0, 0));
  EXPECT_THAT(values_of<std::int64_t>(*documents, 2, "input_ids"), ElementsAre(31, 32, 33, 0));
}

TEST_F(ArrowFileTest, ListsNeedNotBeginAtTheFirstItem) {
  std::string bytes = replaced(arrow_bytes(), kOffsets, std::string("\1\0\0\0\3\0\0\0\5\0\0\0", 12));
  bytes = replaced(bytes, std::string("\0\0\0\0\3\0\0\0\x1f", 9), std::string("\1\0\0\0\3\0\0\0\x1f", 9));
  const auto rows = open(bytes);
  EXPECT_THAT(values_of<std::int32_t>(*rows, 0, "input_ids"), ElementsAre(12, 13));
  EXPECT_THAT(values_of<std::int32_t>(*rows, 1, "input_ids"), ElementsAre(21, 22));
  EXPECT_THAT(values_of<std::int32_t>(*rows, 2, "input_ids"), ElementsAre(32, 33));
  const auto documents = open(bytes, "documents", 2);
  EXPECT_THAT(values_of<std::int64_t>(*documents, 1, "input_ids"), ElementsAre(21, 22));
  EXPECT_THAT(values_of<std::int64_t>(*documents, 2, "input_ids"), ElementsAre(32, 33));
}

TEST_F(ArrowFileTest, DamagedOffsetsAreRefused) {
  for (const std::string& format : {std::string("arrow"), std::string("documents")}) {
    const auto said = [&](const std::string& offsets) {
      return refusal(replaced(arrow_bytes(), kOffsets, offsets), format);
    };
    EXPECT_THAT(said(std::string("\0\0\0\0\3\0\0\0\7\0\0\0", 12)), HasSubstr("a list begins at item 7 of 6"));
    EXPECT_THAT(said(std::string("\0\0\0\0\7\0\0\0\6\0\0\0", 12)), HasSubstr("a list begins at item 7 of 6"));
    EXPECT_THAT(said(std::string("\4\0\0\0\3\0\0\0\6\0\0\0", 12)),
                HasSubstr("item 3 of 6, and the one before at 4"));
    EXPECT_THAT(said("\xff\xff\xff\xff" + kOffsets.substr(4)), HasSubstr("a list begins at item -1"));
  }
}

TEST_F(ArrowFileTest, WhatIsNotAStreamIsRefused) {
  const std::string bytes = arrow_bytes();
  EXPECT_THAT(refusal("short"), HasSubstr("it is not an Arrow file: it has less than 8 bytes"));
  EXPECT_THAT(refusal("a text that is long enough"), HasSubstr("it is not an Arrow file"));
  EXPECT_THAT(refusal(kEnd), HasSubstr("it has no schema"));
  EXPECT_THAT(refusal(bytes + "x"), HasSubstr("1 bytes follow the end of its stream"));
  EXPECT_THAT(refusal(bytes.substr(0, bytes.size() - 8)), HasSubstr("without the end of its stream"));
  EXPECT_THAT(refusal(std::string("ARROW1\0\0", 8) + bytes),
              HasSubstr("begins with 'ARROW1', but does not end"));
  const std::size_t second =
      bytes.find(std::string("\xff\xff\xff\xff\x28\x01", 6));  // The first record batch.
  ASSERT_NE(second, std::string::npos);
  EXPECT_THAT(refusal(bytes.substr(second)), HasSubstr("its first message is not a schema"));
  EXPECT_THAT(refusal(bytes.substr(0, second) + bytes), HasSubstr("it has two schemas"));
  EXPECT_THAT(refusal(bytes.substr(0, second) + kEnd), HasSubstr("has no rows"));
  EXPECT_THAT(refusal(bytes.substr(0, second) + "\1\2\3\4\5\6\7\x8"), HasSubstr("a message should begin"));
}

TEST_F(ArrowFileTest, AFileWithAFooterIsAStreamWithin) {
  const auto source = open(std::string("ARROW1\0\0", 8) + arrow_bytes() + "footerARROW1");
  EXPECT_THAT(values_of<std::int32_t>(*source, 2, "input_ids"), ElementsAre(31, 32, 33));
}

TEST_F(ArrowFileTest, EveryPrefixIsRefused) {
  const std::string bytes = arrow_bytes();
  for (std::size_t count = 0; count < bytes.size(); ++count) {
    EXPECT_NE(refusal(count == 0 ? "x" : bytes.substr(0, count)), "nothing") << count;
  }
}

// Whatever a byte becomes, the samples are read, or an Error says what is wrong.
TEST_F(ArrowFileTest, ChangedBytesAreReadOrRefused) {
  const std::string bytes = arrow_bytes();
  std::map<std::string, int> outcomes;
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const int change : {1, 0x80, 0xff}) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(changed[at] ^ change);
      for (const auto& [format, length] : {std::pair{"arrow", 0}, {"documents", 4}}) {
        try {
          const auto source = open(changed, format, length);
          (void)source->fingerprint();
          ++outcomes["read"];
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::kUsage) << error.message();
          ++outcomes["refused"];
        }
      }
    }
  }
  EXPECT_GT(outcomes["read"], 100);
  EXPECT_GT(outcomes["refused"], 100);
}

TEST_F(ArrowFileTest, ADirectoryNamesItsFiles) {
  std::filesystem::create_directory(dir_ / "saved");
  write_file(dir_ / "saved/one", arrow_bytes());
  write_file(dir_ / "saved/two", arrow_bytes());
  const auto said = [&](const std::string& state) {
    write_file(dir_ / "saved/state.json", state);
    try {
      const auto source = data_format("arrow").open({"arrow", (dir_ / "saved").string(), 0, ""});
      return source->position(source->size() - 1);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      return error.message();
    }
  };
  EXPECT_THAT(said(R"({"_data_files": [{"filename": "two"}, {"filename": "one"}]})"),
              HasSubstr("one', sample 2"));
  EXPECT_THAT(said(R"({"_data_files": [{"filename": "one"}, {"filename": "two"}]})"),
              HasSubstr("two', sample 2"));
  EXPECT_THAT(said(R"({"_data_files": [{"filename": "three"}]})"),
              HasSubstr("'three' that it names is not there"));
  EXPECT_THAT(said(R"({"_data_files": [{"filename": "../saved/one"}]})"),
              HasSubstr("is not the name of a file"));
  EXPECT_THAT(said(R"({"_data_files": []})"), HasSubstr("the dataset has no rows"));
  EXPECT_THAT(said(R"({"_data_files": 1})"), HasSubstr("state.json"));
  EXPECT_THAT(said(R"({})"), HasSubstr("state.json"));
}

}  // namespace
}  // namespace accel
