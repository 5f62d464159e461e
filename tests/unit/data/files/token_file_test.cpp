#include "data/files/token_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"

namespace accel {
namespace {

using ::testing::HasSubstr;
using namespace std::string_literals;

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string llmc(std::uint32_t magic, std::uint32_t version, std::uint32_t tokens,
                 const std::string& payload) {
  std::vector<std::uint32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = tokens;
  return bytes_of(header) + payload;
}

std::string npy(const std::string& descr, const std::string& payload, char version = 1) {
  std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': (2,), }";
  header.resize(118, ' ');
  return "\x93NUMPY"s + version + "\0\x76\0"s + header + payload;
}

/// Returns tokens of a vocabulary of 50,000.
std::string tokens() {
  std::vector<std::uint16_t> values;
  for (std::uint32_t i = 0; i < 2000; ++i) values.push_back(static_cast<std::uint16_t>(i * 7919 % 50000));
  return bytes_of(values);
}

/// Returns the message of the error, or an empty text if the file is accepted.
std::string refusal(const std::string& format, const std::string& dtype, const std::string& name,
                    std::string_view content) {
  try {
    (void)token_encoding(format, dtype, name, std::as_bytes(std::span(content)));
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.message();
  }
}

TEST(TokenFileTest, TokensWithoutAHeaderAreNotFallenBackTo) {
  EXPECT_THAT(refusal("tokens", "", "t.bin", tokens()),
              HasSubstr("a file without a known header, neither .npy nor llm.c's token file"));
  EXPECT_EQ(refusal("tokens", "uint16", "t.bin", tokens()), "");
  EXPECT_EQ(refusal("tokens", "uint32", "t.bin", tokens()), "");
}

TEST(TokenFileTest, AnNpyFileHoldsToItsFormat) {
  const std::string good = npy("<u2", "\1\0\2\0"s);
  EXPECT_EQ(refusal("tokens", "", "a.npy", good), "");
  EXPECT_EQ(refusal("tokens", "", "a.tokens", good), "") << "the head says it, whatever the name";
  for (const std::string dtype : {"", "uint16", "uint32"}) {
    std::string other = good;
    other[1] = 'n';
    EXPECT_THAT(
        refusal("tokens", dtype, "a.npy", other),
        HasSubstr("its name says that it is a NumPy array, but its first bytes are not those of one"));
  }
  EXPECT_THAT(refusal("tokens", "", "a.npy", npy("<u2", "\1\0\2\0"s, 9)),
              HasSubstr("version 9, supported are 1 to 3"));
  for (const std::string descr : {"<f4", ">u2", ">u4", ">i8", "|u1", "<u8", "<i2", "|O"})
    EXPECT_THAT(refusal("tokens", "", "a.npy", npy(descr, "\1\0\2\0"s)), HasSubstr("little-endian uint16"));
  EXPECT_THAT(refusal("tokens", "uint16", "a.bin", good),
              HasSubstr("asks for tokens without a header, but this is a NumPy array"));
}

TEST(TokenFileTest, AnLlmcFileHoldsToItsFormat) {
  const std::string four = "\1\0\2\0\3\0\4\0"s;
  EXPECT_EQ(refusal("tokens", "", "t.bin", llmc(20240520, 1, 4, four)), "");
  EXPECT_EQ(refusal("tokens", "", "t.bin", llmc(20240801, 7, 2, four)), "");
  EXPECT_THAT(refusal("tokens", "", "t.bin", llmc(20240520, 2, 4, four)),
              HasSubstr("version 2, supported are"));
  EXPECT_THAT(refusal("tokens", "", "t.bin", llmc(20240801, 1, 2, four)),
              HasSubstr("version 1, supported are"));
  EXPECT_THAT(refusal("tokens", "", "t.bin", llmc(20240520, 1, 5, four)), HasSubstr("says 5 tokens"));
  EXPECT_THAT(refusal("tokens", "", "t.bin", llmc(20240520, 1, 4, four + "\5")), HasSubstr("says 4 tokens"));
  EXPECT_THAT(refusal("tokens", "", "t.bin", llmc(20240520, 1, 4, "").substr(0, 900)),
              HasSubstr("truncated, the file has 900"));
  EXPECT_THAT(refusal("tokens", "", "t.bin", llmc(0x88d83401, 1, 4, four)), HasSubstr("big-endian"));
  EXPECT_THAT(refusal("tokens", "uint16", "t.bin", llmc(20240520, 1, 4, four)),
              HasSubstr("this is llm.c's token file"));
  EXPECT_THAT(refusal("tokens", "uint16", "t.bin", llmc(20240520, 2, 4, four)), HasSubstr("version 2"));
  EXPECT_THAT(refusal("text", "", "t.bin", llmc(20240520, 1, 4, four)), HasSubstr("llm.c's token file"));
}

TEST(TokenFileTest, FilesOfOtherFormatsAreNoData) {
  const std::string rest = tokens();
  const std::vector<std::pair<std::string, std::string>> heads = {
      {"a zip archive", "PK\x03\x04" + rest},
      {"a gzip stream", "\x1f\x8b\x08" + rest},
      {"a zstd stream", "\x28\xb5\x2f\xfd" + rest},
      {"an xz stream", "\xfd\x37zXZ\0"s + rest},
      {"a bzip2 stream", "BZh91AY&SY" + rest},
      {"an HDF5 file", "\x89HDF\r\n\x1a\n" + rest},
      {"a Parquet file", "PAR1\x15" + rest},
      {"an Arrow file", "ARROW1\0\0"s + rest},
      {"a safetensors file", "\x40\0\0\0\0\0\0\0{\"a\""s + rest},
      {"a pickle", "\x80\x04\x95\x10\0\0\0\0\0\0\0"s + rest},
      {"a pickle", "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a"s + rest},
      {"a tar archive", std::string(257, 'a') + "ustar\0"s + rest},
      {"a GGUF file", "GGUF\3\0\0\0"s + rest},
      {"a Megatron index", "MMIDIDX\0\0"s + rest},
      {"a NumPy array", npy("<u2", "\1\0\2\0"s)},
  };
  for (const auto& [title, content] : heads) {
    for (const std::string dtype : {"uint16", "uint32"})
      EXPECT_THAT(refusal("tokens", dtype, "t.bin", content), HasSubstr("this is " + title));
    EXPECT_THAT(refusal("text", "", "t", content), HasSubstr("this is " + title));
    if (title != "a NumPy array") {
      EXPECT_THAT(refusal("tokens", "", "t.bin", content), HasSubstr("this is " + title));
    }
  }
}

TEST(TokenFileTest, NamesHoldToo) {
  for (const char* name :
       {"a.zip", "a.npz", "a.gz", "a.zst", "a.safetensors", "a.parquet", "a.pkl", "a.h5"}) {
    EXPECT_THAT(refusal("tokens", "uint16", name, tokens()), HasSubstr("its name says that it is a")) << name;
    const std::string said = refusal("text", "", name, "some text");
    EXPECT_EQ(said.empty(), std::string_view(name) != "a.parquet") << name << said;
  }
}

TEST(TokenFileTest, WhatIsAskedForByItsDtypeIsTaken) {
  EXPECT_EQ(refusal("tokens", "uint16", "t.bin", std::string(9000, '\0')), "");
  EXPECT_EQ(refusal("tokens", "uint16", "t.bin", std::string(20000, '\0') + tokens()), "") << "padding";
  EXPECT_EQ(refusal("tokens", "uint16", "t.bin", "\x80\x02" + tokens() + "\0."s), "");
}

TEST(TokenFileTest, TextIsNoTokens) {
  const std::string text = "In the beginning God created the heaven and the earth.\n";
  const std::string json = R"([{"text": "Schöpfung", "id": 1}])";
  for (const std::string& content : {text, json})
    EXPECT_THAT(refusal("tokens", "uint16", "t.bin", content), HasSubstr("but this is text"));
  EXPECT_THAT(refusal("tokens", "", "t.bin", text), HasSubstr("neither .npy nor llm.c's"));
  EXPECT_THAT(refusal("tokens", "uint16", "t.jsonl", tokens()), HasSubstr("but this is text"));
  for (const char* name : {"t.json", "t.jsonl", "t.csv", "t.parquet"})
    EXPECT_THAT(refusal("text", "", name, json), HasSubstr("file has records")) << name;
  EXPECT_EQ(refusal("text", "", "t.txt", json), "");
  EXPECT_EQ(refusal("text", "", "t", tokens()), "") << "bytes without a known head are text to a byte model";
}

}  // namespace
}  // namespace accel
