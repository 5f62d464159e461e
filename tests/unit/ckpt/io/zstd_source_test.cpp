#include "ckpt/io/zstd_source.hpp"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>
#include <zstd.h>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::pattern;
using testing::TempDir;
using testing::write_file;

std::string pack(const std::string& text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 1));
  return packed;
}

class ZstdSourceTest : public ::testing::Test {
 protected:
  void write(const std::string& packed) {
    write_file(dir_ / "f", "xxx" + packed + "yy");
    range_ = {3, packed.size()};
  }
  ZstdSource open() { return ZstdSource(File::open_read(dir_ / "f"), range_); }
  static std::string read(ZstdSource& source, std::uint64_t at, std::size_t count) {
    std::string out(count, '?');
    source.read_at(at, std::as_writable_bytes(std::span(out)));
    return out;
  }

  TempDir dir_;
  PackedRange range_;
  const std::string text_ = pattern(1'000'003, 5);
};

TEST_F(ZstdSourceTest, ReadsForwardsAndBackwards) {
  write(pack(text_));
  ZstdSource source = open();
  for (const std::uint64_t at : {0U, 900'000U, 10U, 500'000U, 500'001U, 999'990U, 0U}) {
    EXPECT_EQ(read(source, at, 13), text_.substr(at, 13)) << at;
  }
  EXPECT_EQ(source.size(), text_.size());
  EXPECT_EQ(read(source, text_.size() - 7, 7), text_.substr(text_.size() - 7));
  EXPECT_EQ(read(source, 0, text_.size()), text_);
  EXPECT_EQ(read(source, 0, 0), "");
}

TEST_F(ZstdSourceTest, FramesFollowEachOther) {
  write(pack(text_.substr(0, 400'000)) + pack("") + pack(text_.substr(400'000)));
  ZstdSource source = open();
  EXPECT_EQ(source.size(), text_.size());
  EXPECT_EQ(read(source, 399'998, 4), text_.substr(399'998, 4));
}

TEST_F(ZstdSourceTest, NothingIsReadBeyondTheEnd) {
  write(pack("abc"));
  ZstdSource source = open();
  EXPECT_EQ(source.size(), 3U);
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)read(source, 2, 2); }),
              HasSubstr("unpacks to 3 bytes"));
  (void)error_of(ErrorKind::kCorrupt, [&] { (void)read(source, ~std::uint64_t{0}, 2); });
}

TEST_F(ZstdSourceTest, RejectsWhatIsBroken) {
  const std::string packed = pack(text_);
  write(packed.substr(0, packed.size() / 2));
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)open().size(); }), HasSubstr("ends within a frame"));
  write("no stream at all");
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)open().size(); }), HasSubstr("is broken"));
  range_ = {3, 100};
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)open(); }), HasSubstr("are needed"));
  range_ = {~std::uint64_t{0}, 2};
  (void)error_of(ErrorKind::kCorrupt, [&] { (void)open(); });
}

RC_GTEST_PROP(ZstdSourcePropertyTest, DamageIsAnErrorOrOtherBytes, ()) {
  const TempDir dir;
  std::string packed = pack(pattern(5000, 1));
  packed[*rc::gen::inRange<std::size_t>(0, packed.size())] = *rc::gen::arbitrary<char>();
  write_file(dir / "f", packed);
  testing::expect_ok_or_error([&] {
    ZstdSource source(File::open_read(dir / "f"), {0, packed.size()});
    std::vector<std::byte> out(std::min<std::uint64_t>(source.size(), 10'000));
    source.read_at(0, out);
  });
}

}  // namespace
}  // namespace accel::ckpt
