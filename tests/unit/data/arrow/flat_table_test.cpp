#include "data/arrow/flat_table.hpp"

#include <gtest/gtest.h>

#include <string>

#include "base/error.hpp"
#include "ckpt/io/endian.hpp"

namespace accel {
namespace {

// A message by its words of 4 bytes.
std::string words(std::initializer_list<std::uint32_t> values) {
  std::string bytes;
  for (const std::uint32_t value : values) ckpt::put_uint(bytes, value, 4);
  return bytes;
}

FlatTable root_of(const std::string& bytes) { return FlatTable::root_of(std::as_bytes(std::span(bytes))); }

// The list of places at byte 4 (12 bytes, a table of 16; field 0 at 4, field 1 absent, fields 2 and 3 at 8
// and 12), and the table at byte 16. Field 0 is 7, field 2 leads to a vector of 2 items, field 3 to the table
// itself.
const std::string kMessage =
    words({16, 0x0010000c, 0x00000004, 0x000c0008, 12, 7, 8, 0xfffffff4, 2, 0x64636261, 0x68676665});

TEST(FlatTableTest, ReadsFieldsThatAreThereAndThoseThatAreNot) {
  const FlatTable table = root_of(kMessage);
  EXPECT_EQ(table.number<std::int32_t>(0, -1), 7);
  EXPECT_EQ(table.number<std::int32_t>(1, -1), -1) << "a place of 0 means that the field is absent";
  EXPECT_EQ(table.number<std::int32_t>(9, -1), -1) << "the list of places is shorter";
  EXPECT_EQ(table.text(2), "ab");
  EXPECT_EQ(table.text(1), "");
  EXPECT_EQ(table.vector(2, 4).size, 2U);
  EXPECT_EQ(table.int64_of(table.vector(2, 4), 0, 4, 0), 0x6867666564636261);
  EXPECT_FALSE(table.table(1).has_value());
}

TEST(FlatTableTest, WhatLeadsOutOfTheMessageIsRefused) {
  EXPECT_THROW((void)root_of(""), Error);
  EXPECT_THROW((void)root_of(words({100})).number<std::int32_t>(0, 0), Error) << "the root";
  EXPECT_THROW((void)root_of(words({4, 100})).number<std::int32_t>(0, 0), Error)
      << "a list before the message";
  EXPECT_THROW((void)root_of(words({4, 0xffffff00})).number<std::int32_t>(0, 0), Error) << "a list behind it";
  const FlatTable table = root_of(kMessage);
  EXPECT_THROW((void)table.vector(2, 8), Error) << "two items of 8 bytes";
  EXPECT_THROW((void)table.int64_of(table.vector(2, 4), 1, 4, 0), Error) << "the last item has 4 bytes";
  EXPECT_THROW((void)table.int64_of(table.vector(2, 4), 2, 4, 0), Error) << "there is no third item";
  EXPECT_THROW((void)table.table_of(table.vector(2, 4), 2), Error);
  EXPECT_THROW((void)table.table(3)->number<std::int32_t>(0, 0), Error) << "offsets lead forward alone";
  for (std::size_t bytes = 0; bytes < kMessage.size(); ++bytes) {
    EXPECT_THROW((void)root_of(kMessage.substr(0, bytes)).vector(2, 4), Error) << bytes;
  }
}

}  // namespace
}  // namespace accel
