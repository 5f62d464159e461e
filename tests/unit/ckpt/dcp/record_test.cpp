#include "ckpt/dcp/record.hpp"

#include <gmock/gmock.h>

#include "ckpt/io/crc32.hpp"
#include "ckpt/io/endian.hpp"
#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::bytes_of;
using testing::error_of;
using testing::expect_ok_or_error;
using ::testing::HasSubstr;

const ItemRecord kTensor{3,
                         1,
                         4,
                         1088,
                         2000,
                         {"model", "h.0.ü", std::int64_t{-2}},
                         ItemRecord::Chunk{DType::kBFloat16, {5, 7}, {{1, 2}, {4, 3}}}};
const ItemRecord kObject{0, 0, 1, 128, 700, {"lr"}, std::nullopt};
const ItemRecord kScalar{0, 0, 1, 128, 700, {"s"}, ItemRecord::Chunk{DType::kBool, {}, {{}, {}}}};

// The record with a changed body and the checksum of that body.
std::string resummed(std::string record, std::size_t at, std::string_view text) {
  record.replace(at, text.size(), text);
  std::string sum;
  put_uint(sum, crc32(bytes_of(std::string_view(record).substr(24))), 4);
  return record.replace(20, 4, sum);
}

std::string rejection(const std::string& record) {
  return error_of(ErrorKind::kCorrupt, [&] { (void)decode_item_record(bytes_of(record)); });
}

TEST(ItemRecordTest, IsReadAsItWasWritten) {
  for (const ItemRecord& record : {kTensor, kObject, kScalar}) {
    const std::string bytes = encode_item_record(record);
    EXPECT_TRUE(looks_like_item_record(bytes_of(bytes)));
    EXPECT_EQ(item_record_bytes(bytes_of(bytes)), bytes.size());
    EXPECT_EQ(decode_item_record(bytes_of(bytes)), record);
  }
}

TEST(ItemRecordTest, BytesAreTheseForEver) {
  const std::string bytes = encode_item_record(kObject);
  const std::string body(
      "\0\0\0\0"
      "\0\0\0\0"
      "\1\0\0\0"
      "\x80\0\0\0\0\0\0\0"
      "\xbc\2\0\0\0\0\0\0"
      "\1\0"
      "\0\2\0\0\0lr"
      "\0",
      38);
  EXPECT_EQ(bytes.substr(0, 20), std::string("ACCELREC\1\0\0\0\x3e\0\0\0\0\0\0\0", 20));
  EXPECT_EQ(bytes.substr(24), body);
}

TEST(ItemRecordTest, LengthDoesNotDependOnPlaces) {
  ItemRecord moved = kTensor;
  moved.rank = moved.index = 0xfffffffe;
  moved.count = 0xffffffff;
  moved.offset = moved.length = ~std::uint64_t{0};
  EXPECT_EQ(encode_item_record(moved).size(), encode_item_record(kTensor).size());
}

TEST(ItemRecordTest, AnyChangedByteIsNoticed) {
  const std::string bytes = encode_item_record(kTensor);
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    EXPECT_THROW((void)decode_item_record(bytes_of(changed)), Error) << at;
  }
}

TEST(ItemRecordTest, RejectsContradictionsUnderARightChecksum) {
  const std::string tensor = encode_item_record(kTensor);
  EXPECT_THAT(rejection(resummed(tensor, 28, std::string("\4\0\0\0", 4))), HasSubstr("contradicts itself"));
  EXPECT_THAT(rejection(resummed(tensor, tensor.find("bfloat16"), "xfloat16")), HasSubstr("'xfloat16'"));
  EXPECT_THAT(rejection(resummed(tensor, tensor.size() - 48, std::string("\4", 1))),
              HasSubstr("does not lie within"));
  EXPECT_THAT(rejection(resummed(tensor, tensor.find("bfloat16") - 2, std::string("\7", 1))),
              HasSubstr("neither a tensor nor an object"));
  EXPECT_THAT(rejection(resummed(tensor, tensor.find("model") - 5, std::string("\7", 1))),
              HasSubstr("unknown type"));
  const std::string object = encode_item_record(kObject);
  EXPECT_THAT(rejection(resummed(object, object.find("lr") - 4, std::string("\x7f", 1))),
              HasSubstr("ends early"));
  EXPECT_THAT(rejection(resummed(object, object.find("lr") - 4, std::string("\1", 1))),
              HasSubstr("item record"));
}

TEST(ItemRecordTest, TruncationsAreRejected) {
  const std::string bytes = encode_item_record(kTensor);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW((void)decode_item_record(bytes_of(std::string_view(bytes).substr(0, size))), Error);
    expect_ok_or_error([&] { (void)item_record_bytes(bytes_of(std::string_view(bytes).substr(0, size))); });
  }
}

}  // namespace
}  // namespace accel::ckpt
