#include "ckpt/torch/legacy.hpp"

#include <gmock/gmock.h>

#include "ckpt/io/endian.hpp"
#include "ckpt/pickle/writer.hpp"
#include "ckpt/torch/tensor.hpp"
#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using pickle::Dict;
using pickle::List;
using pickle::Value;
using testing::error_of;
using ::testing::HasSubstr;
using testing::TempDir;
using testing::write_file;

constexpr std::string_view kMagic(
    "\x80\x02\x8a\x0al\xfc\x9c"
    "F\xf9 j\xa8P\x19.");

// A file with a float32 tensor [2] "w" in storage 'a' and an int8 tensor [3] "b" in storage 'b'.
class LegacyTorchTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::string file() const {
    std::string bytes(magic_);
    bytes += pickle::write(protocol_);
    bytes += pickle::write(Dict{{{"little_endian", true}}});
    bytes += pickle::write(Dict{{{"w", pickle_of_tensor(DType::kFloat32, {2}, "a")},
                                 {"b", pickle_of_tensor(DType::kInt8, {3}, "b")}}});
    bytes += pickle::write(List{keys_});
    for (const auto& [count, data] : storages_) {
      put_uint(bytes, count, 8);
      bytes += data;
    }
    return bytes;
  }
  LegacyTorch read(const std::string& bytes) {
    write_file(dir_ / "f", bytes);
    const File opened = File::open_read(dir_ / "f");
    return read_legacy_torch(FileWindow(opened, 0, bytes.size()));
  }
  std::string rejection() {
    return error_of(ErrorKind::kCorrupt, [&] { (void)read(file()); });
  }

  TempDir dir_;
  std::string_view magic_ = kMagic;
  Value protocol_ = 1001;
  pickle::Values keys_ = {"a", "b"};
  std::vector<std::pair<std::uint64_t, std::string>> storages_ = {{2, "abcdefgh"}, {3, "xyz"}};
};

TEST_F(LegacyTorchTest, FindsTheStorages) {
  const std::string bytes = file();
  const LegacyTorch found = read(bytes + "behind");
  ASSERT_EQ(found.storages.size(), 2U);
  EXPECT_EQ(bytes.substr(found.storages.at("a").offset, found.storages.at("a").bytes), "abcdefgh");
  EXPECT_EQ(bytes.substr(found.storages.at("b").offset, found.storages.at("b").bytes), "xyz");
  EXPECT_EQ(found.bytes, bytes.size());
}

TEST_F(LegacyTorchTest, EveryTruncationIsAnError) {
  const std::string bytes = file();
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_THROW((void)read(bytes.substr(0, size)), Error) << size;
}

TEST_F(LegacyTorchTest, RejectsStoragesThatDoNotFitThePickle) {
  storages_[0].first = 3;
  EXPECT_THAT(rejection(), HasSubstr("storage 'a' has 12 bytes, its pickle says 8"));
  storages_[0].first = std::uint64_t{1} << 63;
  EXPECT_THAT(rejection(), HasSubstr("overflows"));
  storages_[0].first = 2;
  keys_ = {"a"};
  EXPECT_THAT(rejection(), HasSubstr("storage 'b' of its pickle is not in the file"));
  keys_ = {"a", "c"};
  EXPECT_THAT(rejection(), HasSubstr("does not refer to"));
  keys_ = {"a", "a"};
  storages_[1] = storages_[0];
  EXPECT_THAT(rejection(), HasSubstr("storage 'a' is there twice"));
}

TEST_F(LegacyTorchTest, RejectsAnotherProtocol) {
  protocol_ = 1000;
  EXPECT_THAT(rejection(), HasSubstr("its protocol is 1000; 1001 is expected"));
}

TEST_F(LegacyTorchTest, AnyProtocolOfThePickle) {
  using namespace std::string_view_literals;
  for (const std::string_view magic : {"\x80\x03\x8a\x0al\xfc\x9c"
                                       "F\xf9 j\xa8P\x19."sv,
                                       "\x80\x04\x8a\x0al\xfc\x9c"
                                       "F\xf9 j\xa8P\x19."sv,
                                       "\x80\x04\x95\x0d\0\0\0\0\0\0\0\x8a\x0al\xfc\x9c"
                                       "F\xf9 j\xa8P\x19."sv,
                                       "\x80\x05\x95\x0d\0\0\0\0\0\0\0\x8a\x0al\xfc\x9c"
                                       "F\xf9 j\xa8P\x19."sv}) {
    magic_ = magic;
    write_file(dir_ / "f", file());
    const File opened = File::open_read(dir_ / "f");
    EXPECT_TRUE(looks_like_legacy_torch(FileWindow(opened, 0, opened.size())));
    EXPECT_EQ(read(file()).storages.size(), 2U);
  }
  for (const std::string_view magic : {"\x80\x06\x8a\x0al\xfc\x9c"
                                       "F\xf9 j\xa8P\x19."sv,
                                       "\x80\x04\x95\x0d\0\0"sv, "\x80\x02\x8a\x0al\xfc\x9c"sv, "\x80"sv}) {
    write_file(dir_ / "f", std::string(magic));
    const File opened = File::open_read(dir_ / "f");
    EXPECT_FALSE(looks_like_legacy_torch(FileWindow(opened, 0, opened.size())));
  }
}

}  // namespace
}  // namespace accel::ckpt
