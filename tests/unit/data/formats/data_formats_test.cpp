#include "data/formats/data_formats.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "base/error.hpp"
#include "data/formats/sample_source.hpp"
#include "temp_dir.hpp"

namespace accel {
namespace {

using testing::TempDir;
using testing::write_file;

TEST(DataFormatsTest, EachNameAndExtensionIsOfOneFormat) {
  std::set<std::string_view> names;
  std::set<std::string_view> extensions;
  for (const DataFormat& format : kDataFormats) {
    EXPECT_EQ(&data_format(format.name), &format);
    EXPECT_TRUE(names.insert(format.name).second) << format.name;
    for (const std::string_view extension : format.extensions)
      EXPECT_TRUE(extension.empty() || extensions.insert(extension).second) << extension;
    EXPECT_FALSE(format.note.empty()) << format.name;
    EXPECT_EQ(format.example.empty(), !format.has_files) << format.name;
    EXPECT_NE(format.open, nullptr) << format.name;
  }
  EXPECT_THROW((void)data_format("pictures"), Error);
}

// A first configuration must find a format for any model.
TEST(DataFormatsTest, OneFormatTakesTokensOfAnyNumberAndOneHasItsOwnFields) {
  for (const bool own : {false, true}) {
    EXPECT_TRUE(std::any_of(kDataFormats.begin(), kDataFormats.end(), [&](const DataFormat& format) {
      return format.has_own_fields == own && format.tokens == 0;
    })) << own;
  }
}

/// The names of the formats for which `holds`, with `between` between them and `last` before the last.
std::string names_of(bool (*holds)(const DataFormat&), const std::string& between, const std::string& last) {
  std::vector<std::string_view> names;
  for (const DataFormat& format : kDataFormats) {
    if (holds(format)) names.push_back(format.name);
  }
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += std::string(i == 0 ? "" : i + 1 == names.size() ? last : between) + std::string(names[i]);
  return text;
}

TEST(DataFormatsTest, TextsNameTheFormatsOfTheTable) {
  EXPECT_EQ(names_of([](const DataFormat&) { return true; }, "|", "|"), kFormatNames);
  EXPECT_EQ(names_of([](const DataFormat& format) { return format.has_dtype; }, ", ", " and "), kDtypeFormat);
  EXPECT_EQ(names_of([](const DataFormat& format) { return format.has_own_fields; }, ", ", " and "),
            kOwnFieldsFormat);
  EXPECT_EQ(names_of([](const DataFormat& format) { return format.has_documents; }, ", ", " and "),
            kDocumentsFormat);
  EXPECT_EQ(names_of([](const DataFormat& format) { return !format.has_own_fields && !format.has_documents; },
                     ", ", " and "),
            kTokenFormats);
}

std::vector<std::int64_t> field_of(const SampleSource& source, std::int64_t sample, Labels labels,
                                   std::size_t field) {
  std::vector<std::int64_t> values(source.fields()[field].bytes / sizeof(std::int64_t));
  std::vector<std::span<std::byte>> out(source.fields().size());
  out[field] = std::as_writable_bytes(std::span(values));
  source.read(sample, labels, out);
  return values;
}

TEST(DataFormatsTest, ASampleOfTokensIsAWindow) {
  const TempDir dir;
  write_file(dir / "a", "0123456789");
  const auto source = data_format("text").open({"text", (dir / "a").string(), 3, ""});
  EXPECT_EQ(source->size(), 3);
  EXPECT_EQ(source->size_text(), "10 tokens make 3 samples of 3");
  EXPECT_EQ(source->sequence_length(), 3);
  ASSERT_EQ(source->fields().size(), 2U);
  EXPECT_EQ(field_of(*source, 1, Labels::kNextTokens, 0), (std::vector<std::int64_t>{'3', '4', '5'}));
  EXPECT_EQ(field_of(*source, 1, Labels::kNextTokens, 1), (std::vector<std::int64_t>{'4', '5', '6'}));
  EXPECT_EQ(field_of(*source, 1, Labels::kInputs, 1), (std::vector<std::int64_t>{'3', '4', '5'}));
  // The last label of a window is held against the vocabulary, too.
  source->set_vocabularies({{kTokensField, '6'}});
  EXPECT_NO_THROW((void)field_of(*source, 0, Labels::kNextTokens, 0));
  EXPECT_THROW((void)field_of(*source, 1, Labels::kInputs, 0), Error);
}

TEST(DataFormatsTest, ASampleOfTensorsIsARow) {
  const TempDir dir;
  const std::string header = R"({"x":{"dtype":"I64","shape":[2,2],"data_offsets":[0,32]},)"
                             R"("y":{"dtype":"I64","shape":[2],"data_offsets":[32,48]}})";
  const std::uint64_t bytes = header.size();
  const std::vector<std::int64_t> values = {1, 2, 3, -4, 5, 6};
  std::string file(sizeof bytes, '\0');
  std::memcpy(file.data(), &bytes, sizeof bytes);
  file += header;
  file.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof values.front());
  write_file(dir / "a", file);
  const auto source = data_format("tensors").open({"tensors", (dir / "a").string(), 0, ""});
  EXPECT_EQ(source->size_text(), "2 samples");
  EXPECT_EQ(source->sequence_length(), 0);
  EXPECT_EQ(field_of(*source, 1, Labels::kInputs, 0), (std::vector<std::int64_t>{3, -4}));
  EXPECT_EQ(field_of(*source, 1, Labels::kInputs, 1), (std::vector<std::int64_t>{6}));
  source->set_vocabularies({{"x", 3}});
  EXPECT_NO_THROW((void)field_of(*source, 0, Labels::kInputs, 0));
  EXPECT_NO_THROW((void)field_of(*source, 1, Labels::kInputs, 1)) << "a field that has no vocabulary";
  EXPECT_THROW((void)field_of(*source, 1, Labels::kInputs, 0), Error);
}

}  // namespace
}  // namespace accel
