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

// From a megabyte on, the halves are scanned at once if there are frames.
class LargePickleScanTest : public ::testing::Test {
 protected:
  static std::string number_of_bytes(std::size_t size) {
    std::string bytes(8, '\0');
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(size >> 8 * i);
    return bytes;
  }
  static std::string frame(const std::string& content) {
    return "\x95" + number_of_bytes(content.size()) + content;
  }
  // Opcodes of `size` bytes: None, pushed and taken off.
  static std::string filler(std::size_t size) {
    std::string opcodes;
    while (opcodes.size() < size) opcodes += "N0";
    return opcodes;
  }
  static constexpr std::size_t kHalf = 600'000;
  const std::string start_ = "\x80\x04"s;
};

TEST_F(LargePickleScanTest, AddsUpWhatTheHalvesNeed) {
  const std::string first = "]K\x07h\x01\x8c\x01z"s;
  const std::string second = "}]h\x02j\x00\x01\x00\x00\x8c\x01zG12345678."s;
  const Scan small = scan(bytes_of(start_ + first + filler(400) + second));
  const Scan large =
      scan(bytes_of(start_ + frame(first + filler(kHalf)) + frame(filler(kHalf)) + frame(second)));
  EXPECT_EQ(small.counts.nodes, 3U);
  EXPECT_EQ(large.counts.nodes, small.counts.nodes);
  EXPECT_EQ(large.counts.atoms, small.counts.atoms);
  EXPECT_EQ(large.counts.values, small.counts.values - 200 + kHalf);
  EXPECT_EQ(large.fetched, small.fetched);
}

TEST_F(LargePickleScanTest, FindsErrorsInEitherHalf) {
  const std::string good = filler(kHalf);
  const auto error = [&](const std::string& pickle) {
    return error_of(ErrorKind::kCorrupt, [&] { (void)scan(bytes_of(pickle)); });
  };
  EXPECT_THAT(error(start_ + frame(good + "\xff") + frame(good + ".")),
              HasSubstr("byte 600011 of the pickle (opcode 0xff): unknown opcode"));
  EXPECT_THAT(error(start_ + frame(good) + frame(good + "\xff.")),
              HasSubstr("byte 1200020 of the pickle (opcode 0xff): unknown opcode"));
  EXPECT_THAT(error(start_ + frame(good + "\xfe") + frame(good + "\xff")), HasSubstr("opcode 0xfe"));
  EXPECT_THAT(error(start_ + frame(good) + frame(good)), HasSubstr("the pickle ends early"));
  EXPECT_NO_THROW((void)scan(bytes_of(start_ + frame(good + ".") + frame(good + "\xff"))));
}

// The length of a frame is only a claim. Here one leads into a string that looks like a frame.
TEST_F(LargePickleScanTest, DoesNotBelieveFrames) {
  const std::string lie = "\x95" + number_of_bytes(2 * kHalf - 100) + "\xff";
  const std::string text = "X" + number_of_bytes(lie.size()).substr(0, 4) + lie;
  const std::string before = filler(kHalf);
  const std::string after = filler(kHalf) + ".";
  // Up to the string's content, 5 bytes behind the opcode.
  const std::string pickle = start_ + "\x95" + number_of_bytes(before.size() + 5) + before + text + after;
  const Scan found = scan(bytes_of(pickle));
  EXPECT_EQ(found.counts.atoms, 1U);
  EXPECT_EQ(found.counts.values, kHalf + 1);
}

}  // namespace
}  // namespace accel::ckpt::pickle
