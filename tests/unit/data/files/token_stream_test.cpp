#include "data/files/token_stream.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "base/error.hpp"
#include "temp_dir.hpp"

namespace accel {
namespace {

using testing::TempDir;
using testing::write_file;

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

TokenStream open(const std::string& format, const std::string& path, const std::string& dtype = "") {
  return TokenStream::open({format, path, 0, dtype});
}

std::vector<std::int64_t> all_of(const TokenStream& stream) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(stream.size()));
  stream.read(0, tokens);
  return tokens;
}

std::string npy(const std::string& descr, const std::string& shape, const std::string& payload) {
  std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }";
  header.resize(118, ' ');
  std::string text = "\x93NUMPY";
  text += std::string("\x01\x00\x76\x00", 4);  // Version 1.0; 118 bytes of header.
  return text + header + payload;
}

TEST(TokenStreamTest, TextIsBytesOfAllMatchesInOrder) {
  const TempDir dir;
  write_file(dir / "b.txt", "cd\xff");
  write_file(dir / "a.txt", "ab");
  const TokenStream stream = open("text", (dir / "*.txt").string());
  EXPECT_EQ(all_of(stream), (std::vector<std::int64_t>{'a', 'b', 'c', 'd', 255}));
  std::vector<std::int64_t> middle(2);
  stream.read(1, middle);  // The range crosses the files.
  EXPECT_EQ(middle, (std::vector<std::int64_t>{'b', 'c'}));
}

TEST(TokenStreamTest, WindowsShareTheirLastToken) {
  const TempDir dir;
  write_file(dir / "f", "0123456789");
  const TokenStream stream = open("text", (dir / "f").string());
  EXPECT_EQ(stream.windows(3), 3);  // 0123, 3456, 6789
  EXPECT_EQ(stream.windows(9), 1);
  EXPECT_EQ(stream.windows(10), 0);
}

TEST(TokenStreamTest, TokensWithoutAHeaderAreOfTheTypeThatIsAskedFor) {
  const TempDir dir;
  write_file(dir / "u16.bin", bytes_of<std::uint16_t>({1, 50256, 3}));
  EXPECT_EQ(all_of(open("tokens", (dir / "u16.bin").string(), "uint16")),
            (std::vector<std::int64_t>{1, 50256, 3}));
  write_file(dir / "u32.bin", bytes_of<std::uint32_t>({1, 128000, 3}));
  EXPECT_EQ(all_of(open("tokens", (dir / "u32.bin").string(), "uint32")),
            (std::vector<std::int64_t>{1, 128000, 3}));
}

TEST(TokenStreamTest, LlmcHeaders) {
  const TempDir dir;
  std::vector<std::uint32_t> header(256);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = 3;
  write_file(dir / "u16.bin", bytes_of(header) + bytes_of<std::uint16_t>({7, 8, 9}));
  EXPECT_EQ(all_of(open("tokens", (dir / "u16.bin").string())), (std::vector<std::int64_t>{7, 8, 9}));
  write_file(dir / "short.bin", bytes_of(header) + bytes_of<std::uint16_t>({7, 8}));
  EXPECT_THROW(open("tokens", (dir / "short.bin").string()), Error);
  header[0] = 20240801;
  header[1] = 7;
  header[2] = 2;
  write_file(dir / "u32.bin", bytes_of(header) + bytes_of<std::uint32_t>({128000, 5}));
  EXPECT_EQ(all_of(open("tokens", (dir / "u32.bin").string())), (std::vector<std::int64_t>{128000, 5}));
}

TEST(TokenStreamTest, Npy) {
  const TempDir dir;
  write_file(dir / "a.npy", npy("<u4", "(2,)", bytes_of<std::uint32_t>({70000, 2})));
  EXPECT_EQ(all_of(open("tokens", (dir / "a.npy").string())), (std::vector<std::int64_t>{70000, 2}));
  write_file(dir / "f.npy", npy("<f4", "(2,)", bytes_of<std::uint32_t>({1, 2})));
  EXPECT_THROW(open("tokens", (dir / "f.npy").string()), Error);
  write_file(dir / "m.npy", npy("<u2", "(2, 2)", bytes_of<std::uint16_t>({1, 2, 3, 4})));
  EXPECT_THROW(open("tokens", (dir / "m.npy").string()), Error);
  write_file(dir / "cut.npy", npy("<u2", "(2,)", "").substr(0, 40));
  EXPECT_THROW(open("tokens", (dir / "cut.npy").string()), Error);
  for (const auto& [descr, shape] : {std::pair{"<u2", "(5,)"}, std::pair{"<u2", "(3,)"},
                                     std::pair{"<u2", "()"}, std::pair{"<u2", "(18446744073709551617,)"}}) {
    write_file(dir / "other.npy", npy(descr, shape, bytes_of<std::uint16_t>({1, 2, 3, 4})));
    EXPECT_THROW(open("tokens", (dir / "other.npy").string()), Error) << shape;
  }
}

TEST(TokenStreamTest, NpyOfSignedIntegers) {
  const TempDir dir;
  const std::string path = (dir / "a.npy").string();
  write_file(path, npy("<i4", "(3,)", bytes_of<std::int32_t>({70000, 2, 0})));
  EXPECT_EQ(all_of(open("tokens", path)), (std::vector<std::int64_t>{70000, 2, 0}));
  write_file(path, npy("<i8", "(2,)", bytes_of<std::int64_t>({4294967295, 2})));
  EXPECT_EQ(all_of(open("tokens", path)), (std::vector<std::int64_t>{4294967295, 2}));
  const auto error_of = [&](const std::string& content) {
    write_file(path, content);
    const TokenStream stream = open("tokens", path);
    std::vector<std::int64_t> tokens(2);
    try {
      stream.read(1, tokens);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      return error.message();
    }
    return std::string();
  };
  EXPECT_NE(error_of(npy("<i4", "(3,)", bytes_of<std::int32_t>({1, 2, -100})))
                .find("-100 at position 2 is not a token, which is from 0 to 4294967295"),
            std::string::npos);
  EXPECT_NE(error_of(npy("<i8", "(3,)", bytes_of<std::int64_t>({1, 4294967296, 2})))
                .find("4294967296 at position 1 is not a token"),
            std::string::npos);
}

TEST(TokenStreamTest, RefusesFieldsInNpy) {
  const TempDir dir;
  std::string file = npy("<u2", "(2,)", bytes_of<std::uint16_t>({1, 2, 3, 4}));
  const std::string one = "'descr': '<u2'";
  file.replace(file.find(one), one.size(), "'descr': [('a', '<u2'), ('b', '<u2')]");
  write_file(dir / "fields.npy", file);
  EXPECT_THROW(open("tokens", (dir / "fields.npy").string()), Error);
}

TEST(TokenStreamTest, RefusesUint32ThatIsToBeReadAsUint16) {
  const TempDir dir;
  write_file(dir / "t.bin", bytes_of(std::vector<std::uint32_t>(100, 300)));
  EXPECT_THROW(open("tokens", (dir / "t.bin").string(), "uint16"), Error);
  std::vector<std::uint32_t> llama;  // Its vocabulary has 128256 tokens.
  for (std::uint32_t i = 0; i < 100; ++i) llama.push_back(i * 1283);
  write_file(dir / "t.bin", bytes_of(llama));
  EXPECT_THROW(open("tokens", (dir / "t.bin").string(), "uint16"), Error);
  // A vocabulary of four tokens, as for DNA, and one in which every second token happens to be small.
  std::vector<std::uint16_t> bases;
  for (int i = 0; i < 100; ++i) bases.push_back(static_cast<std::uint16_t>(i * 7 % 4));
  write_file(dir / "t.bin", bytes_of(bases));
  EXPECT_EQ(all_of(open("tokens", (dir / "t.bin").string(), "uint16")).size(), 100U);
}

TEST(TokenStreamTest, ASmallTokenAtEachSecondPlaceIsNoUint32) {
  const TempDir dir;
  std::vector<std::uint16_t> tokens;
  for (std::uint16_t i = 0; i < 100; ++i) {
    tokens.push_back(i);
    tokens.push_back(1);
  }
  write_file(dir / "t.bin", bytes_of(tokens));
  EXPECT_EQ(all_of(open("tokens", (dir / "t.bin").string(), "uint16")).size(), 200U);
}

TEST(TokenStreamTest, NamesWhatIsWrong) {
  const TempDir dir;
  write_file(dir / "empty.txt", "");
  write_file(dir / "odd.bin", "abc");
  for (const auto& [format, name, part] :
       {std::tuple{"text", "none*.txt", "no file matches"},
        std::tuple{"text", "empty.txt", "the file is empty"},
        std::tuple{"tokens", "odd.bin", "3 bytes are not a whole number"}}) {
    try {
      open(format, (dir / name).string(), format == std::string_view("tokens") ? "uint16" : "");
      FAIL() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
      EXPECT_NE(error.message().find(name), std::string::npos) << error.message();
    }
  }
}

}  // namespace
}  // namespace accel
