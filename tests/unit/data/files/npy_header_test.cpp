#include "data/files/npy_header.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <string_view>

#include "base/error.hpp"

namespace accel {
namespace {

using namespace std::string_literals;
using ::testing::HasSubstr;

NpyHeader read(const std::string& dict, char version = 1) {
  std::string file = "\x93NUMPY"s + version + "\0"s;
  const auto length = static_cast<std::uint32_t>(dict.size());
  for (int byte = 0; byte < (version == 1 ? 2 : 4); ++byte)
    file += static_cast<char>((length >> (8 * byte)) & 0xff);
  file += dict;
  return read_npy_header(std::as_bytes(std::span(std::string_view(file))));
}

std::string refusal(const std::string& dict) {
  try {
    (void)read(dict);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.message();
  }
  return "nothing";
}

TEST(NpyHeaderTest, ReadsWhatNumPyAndOthersWrite) {
  const std::string dict = "{'descr': '<u2', 'fortran_order': False, 'shape': (2000,), }       \n";
  const NpyHeader header = read(dict);
  EXPECT_EQ(header.descr, "<u2");
  EXPECT_EQ(read("{'descr': '<u2', 'fortran_order': False, 'shape': (2000L,), }\n").shape,
            header.shape);  // Python 2
  EXPECT_FALSE(header.is_fortran_order);
  EXPECT_EQ(header.shape, std::vector<std::uint64_t>{2000});
  EXPECT_EQ(header.bytes, 10 + dict.size());
  EXPECT_EQ(header.shape_text(), "(2000,)");
  const NpyHeader compact = read(R"({"shape":(20,100),"fortran_order":True,"descr":"<i8"})", 3);
  EXPECT_EQ(compact.shape_text(), "(20, 100)");
  EXPECT_TRUE(compact.is_fortran_order);
  EXPECT_EQ(compact.descr, "<i8");
  EXPECT_EQ(read("{'descr': [('a', '<u2'), ('b', '<u2')], 'fortran_order': False, 'shape': ()}").descr,
            "[('a', '<u2'), ('b', '<u2')]");
  EXPECT_EQ(read("{'descr': '<u2', 'fortran_order': False, 'shape': ()}").shape_text(), "()");
}

TEST(NpyHeaderTest, SaysWhatItFoundOtherwise) {
  const auto with = [](const std::string& rest) { return "{'descr': '<u2', " + rest + "}"; };
  EXPECT_THAT(refusal(with("'shape': (4,)")), HasSubstr("has no key 'fortran_order'"));
  EXPECT_THAT(refusal("{'shape': (4,), 'fortran_order': False}"), HasSubstr("has no key 'descr'"));
  EXPECT_THAT(refusal(with("'fortran_order': False, 'shape_': (4,)")), HasSubstr("has the key 'shape_'"));
  EXPECT_THAT(refusal(with("'fortran_order': False, 'shape': (4,), 'shape': (2,)")),
              HasSubstr("has the key 'shape' twice"));
  EXPECT_THAT(refusal(with("'fortran_order': 0, 'shape': (4,)")),
              HasSubstr("True or False is expected, found '0, 'shape': (4,)}'"));
  for (const char* shape : {"4", "(4)", "(-4,)", "(4,", "('4',)", "(99999999999999999999,)", "[4]"})
    EXPECT_THAT(refusal(with("'fortran_order': False, 'shape': "s + shape)), HasSubstr("is expected, found"));
  EXPECT_THAT(refusal(with("'fortran_order': False, 'shape': (4,)") + " # comment"),
              HasSubstr("has '# comment' behind its dict"));
  EXPECT_THAT(refusal("{'descr': [('a', '<u2')"), HasSubstr("a list that ends is expected, found its end"));
  EXPECT_THAT(refusal("{'descr': '<u2"), HasSubstr("a string that ends is expected"));
  EXPECT_THAT(refusal(""), HasSubstr("is truncated"));
  EXPECT_THAT(refusal("[1, 2]"), HasSubstr("'{' is expected, found '[1, 2]'"));
}

}  // namespace
}  // namespace accel
