#include "ckpt/pickle/scan.hpp"

#include <gmock/gmock.h>

#include "helpers.hpp"

namespace accel::ckpt::pickle {
namespace {

using namespace std::string_literals;
using ckpt::testing::bytes_of;
using ckpt::testing::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string argument_in(const std::string& pickle) {
  return std::string(text_in(bytes_of(pickle), argument_at(bytes_of(pickle), 0)));
}

TEST(PickleScanTest, FindsArguments) {
  EXPECT_EQ(argument_in("N"), "");
  EXPECT_EQ(argument_in("K\x05Z"), "\x05");
  EXPECT_EQ(argument_in("X\x02\x00\x00\x00hiZ"s), "hi");
  EXPECT_EQ(argument_in("\x8c\x02hiZ"s), "hi");
  EXPECT_EQ(argument_in("ca\nb\nZ"), "a\nb\n");
  EXPECT_EQ(number_in(bytes_of("\x34\x12"), {0, 2}), 0x1234U);
}

TEST(PickleScanTest, RejectsArgumentsThatEndEarly) {
  for (const std::string& pickle : {""s, "K"s, "X\x02\x00\x00"s, "X\x03\x00\x00\x00hi"s, "ca\nb"s, "ca"s,
                                    "\x8d\xff\xff\xff\xff\xff\xff\xff\xffhi"s}) {
    EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)argument_at(bytes_of(pickle), 0); }),
                HasSubstr("ends early"));
  }
}

TEST(PickleScanTest, CountsWhatWillBeNeeded) {
  const Scan found = scan(bytes_of("\x80\x02]q\x00(K\x01X\x01\x00\x00\x00zh\x00j\x41\x00\x00\x00"s +
                                   std::string(70, 'N') + "e."));
  EXPECT_EQ(found.counts.nodes, 1U);
  EXPECT_EQ(found.counts.atoms, 1U);
  EXPECT_EQ(found.counts.values, 75U);
  EXPECT_THAT(found.fetched, ElementsAre(1U, 2U));
}

TEST(PickleScanTest, StopsAtStopOrFails) {
  EXPECT_NO_THROW((void)scan(bytes_of("\x80\x02N.\xff\xff")));
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [] { (void)scan(bytes_of("\x80\x02N")); }),
              HasSubstr("ends early"));
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [] { (void)scan(bytes_of("\x80\x02N\xff.")); }),
              HasSubstr("byte 3 of the pickle (opcode 0xff): unknown opcode"));
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [] { (void)scan(bytes_of("\x80\x02j\xff\xff\xff\xff.")); }),
              HasSubstr("memo 4294967295 was never set"));
}

TEST(PickleScanTest, GoesOnBeyondItsFirstPiece) {
  std::string filler;  // None, pushed and taken off: more than a megabyte.
  while (filler.size() < 1'200'000) filler += "N0";
  const std::string start = "\x80\x04]K\x07h\x01\x8c\x01z"s + filler;
  const Scan found = scan(bytes_of(start + "}]h\x02j\x00\x01\x00\x00\x8c\x01zG12345678."s));
  EXPECT_EQ(found.counts.nodes, 3U);
  EXPECT_EQ(found.counts.atoms, 3U);
  EXPECT_EQ(found.counts.values, 10U + 600'000U);
  EXPECT_THAT(found.fetched, ElementsAre(0b110U, 0U, 0U, 0U, 1U));
  EXPECT_NO_THROW((void)scan(bytes_of(start + ".\xff")));
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)scan(bytes_of(start + "\xff.")); }),
              HasSubstr("byte 1200010 of the pickle (opcode 0xff): unknown opcode"));
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)scan(bytes_of(start)); }),
              HasSubstr("the pickle ends early"));
}

}  // namespace
}  // namespace accel::ckpt::pickle
