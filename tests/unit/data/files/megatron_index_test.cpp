#include "data/files/megatron_index.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "base/error.hpp"
#include "data/files/token_stream.hpp"
#include "temp_dir.hpp"

namespace accel {
namespace {

using ::testing::HasSubstr;
using testing::TempDir;
using testing::write_file;

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// What an index says, with the values of two documents of three tokens and one token of uint16.
struct Index {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  std::uint64_t version = 1;
  std::uint8_t dtype = 8;
  std::uint64_t sequences = 2;
  std::uint64_t entries = 3;
  std::vector<std::int32_t> lengths = {3, 1};
  std::vector<std::int64_t> pointers = {0, 6};
  std::vector<std::int64_t> documents = {0, 1, 2};
  std::string rest;

  [[nodiscard]] std::string bytes() const {
    return magic + bytes_of<std::uint64_t>({version}) + static_cast<char>(dtype) +
           bytes_of<std::uint64_t>({sequences, entries}) + bytes_of(lengths) + bytes_of(pointers) +
           bytes_of(documents) + rest;
  }
};

class MegatronIndexTest : public ::testing::Test {
 protected:
  TokenStream open(const std::string& index, const std::string& tokens) {
    write_file(dir_ / "a.idx", index);
    write_file(dir_ / "a.bin", tokens);
    return TokenStream::open({"megatron", (dir_ / "a.idx").string(), 0, ""});
  }
  std::string error_of(const std::string& index, const std::string& tokens) {
    try {
      (void)open(index, tokens);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      return error.message();
    }
    return "";
  }

  TempDir dir_;
  std::string tokens_ = bytes_of<std::uint16_t>({7, 8, 9, 50256});
};

std::vector<std::int64_t> all_of(const TokenStream& stream) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(stream.size()));
  stream.read(0, tokens);
  return tokens;
}

TEST_F(MegatronIndexTest, DocumentsFollowOneAnother) {
  EXPECT_EQ(all_of(open(Index().bytes(), tokens_)), (std::vector<std::int64_t>{7, 8, 9, 50256}));
}

TEST_F(MegatronIndexTest, ReadsWholeNumbersOfEachDtype) {
  const auto all = [&](std::uint8_t dtype, std::int64_t second, const std::string& tokens) {
    return all_of(open(Index{.dtype = dtype, .pointers = {0, second}}.bytes(), tokens));
  };
  EXPECT_EQ(all(1, 3, bytes_of<std::uint8_t>({1, 2, 3, 255})), (std::vector<std::int64_t>{1, 2, 3, 255}));
  EXPECT_EQ(all(2, 3, bytes_of<std::int8_t>({1, 2, 3, 4})), (std::vector<std::int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(all(3, 6, bytes_of<std::int16_t>({1, 2, 3, 4})), (std::vector<std::int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(all(4, 12, bytes_of<std::int32_t>({1, 2, 3, 128000})),
            (std::vector<std::int64_t>{1, 2, 3, 128000}));
  EXPECT_EQ(all(5, 24, bytes_of<std::int64_t>({1, 2, 3, 128000})),
            (std::vector<std::int64_t>{1, 2, 3, 128000}));
  EXPECT_THROW((void)all(4, 12, bytes_of<std::int32_t>({1, 2, 3, -1})), Error) << "not a token";
}

TEST_F(MegatronIndexTest, SequencesMayBeEmpty) {
  const Index index{.sequences = 3, .lengths = {3, 0, 1}, .pointers = {0, 6, 6}, .documents = {0, 1, 3}};
  EXPECT_EQ(all_of(open(index.bytes(), tokens_)).size(), 4U);
}

TEST_F(MegatronIndexTest, NamesWhatIsWrong) {
  const std::pair<Index, const char*> rows[] = {
      {{.magic = std::string("MMIDIDX\0\1", 9)}, "does not begin with MMIDIDX"},
      {{.version = 2}, "is of version 2"},
      {{.dtype = 7}, "says dtype 7, which is not one of whole numbers"},
      {{.dtype = 0}, "says dtype 0"},
      {{.sequences = 3}, "says 3 sequences and 3 entries of documents, which its 82 bytes do not have"},
      {{.sequences = ~std::uint64_t{0}}, "says 18446744073709551615 sequences"},
      {{.entries = std::uint64_t{1} << 61}, "and 2305843009213693952 entries of documents"},
      {{.rest = "x"}, "which its 83 bytes do not have"},
      {{.rest = std::string(2, '\0')}, "has a mode for each sequence"},
      {{.pointers = {0, 4}}, "puts sequence 1 at byte 4, not at 6"},
      {{.pointers = {2, 8}}, "puts sequence 0 at byte 2, not at 0"},
      {{.pointers = {0, -6}}, "puts sequence 1 at byte 18446744073709551610"},
      {{.lengths = {3, 2}}, "says that sequence 1 has 2 tokens of 2 bytes from byte 6 on, but the .bin file"},
      {{.lengths = {3, -1}}, "says that sequence 1 has -1 tokens"},
      {{.lengths = {3, 0}}, "says 6 bytes of tokens, but the .bin file has 8"},
      {{.documents = {0, 1, 3}}, "says that document 2 begins at sequence 3, but there are 2"},
      {{.documents = {0, 2, 1}}, "says that document 2 begins at sequence 1"},
      {{.documents = {1, 1, 2}}, "says that document 0 begins at sequence 1"},
      {{.documents = {0, -1, 2}}, "says that document 1 begins at sequence 18446744073709551615"},
  };
  for (const auto& [index, part] : rows) {
    const std::string error = error_of(index.bytes(), tokens_);
    EXPECT_THAT(error, HasSubstr(part));
    EXPECT_THAT(error, HasSubstr("a.idx'"));
  }
  EXPECT_THAT(error_of(Index().bytes(), tokens_ + "z"), HasSubstr("but the .bin file has 9"));
  EXPECT_THAT(error_of(Index().bytes(), ""), HasSubstr("the file is empty"));
}

TEST_F(MegatronIndexTest, RefusesAnIndexThatIsTruncatedAnywhere) {
  const std::string whole = Index().bytes();
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes)
    EXPECT_NE(error_of(whole.substr(0, bytes), tokens_), "") << bytes;
}

TEST_F(MegatronIndexTest, ThePathIsThatOfTheIndexAndTheTokensLieBesideIt) {
  (void)open(Index().bytes(), tokens_);
  EXPECT_THROW((void)TokenStream::open({"megatron", (dir_ / "a.bin").string(), 0, ""}), Error);
  std::filesystem::remove(dir_ / "a.bin");
  try {
    (void)TokenStream::open({"megatron", (dir_ / "a.idx").string(), 0, ""});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("a.bin'"));
  }
}

}  // namespace
}  // namespace accel
