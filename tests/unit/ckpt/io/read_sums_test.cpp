#include "ckpt/io/read_sums.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "ckpt/io/crc32.hpp"
#include "ckpt/io/summed_file.hpp"
#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::bytes_of;
using ::testing::ElementsAre;
using ::testing::Pair;
using testing::pattern;
using testing::TempDir;
using testing::write_file;

const std::string kText = pattern(1000, 1);

SummedRange range_of(std::uint64_t begin, std::uint64_t end) {
  return {begin, end, crc32(bytes_of(kText).subspan(begin, end - begin))};
}

/// The CRC that the ranges give, with the gaps that were asked for in `gaps`.
std::optional<std::uint32_t> crc_with(std::vector<SummedRange> ranges, std::uint64_t most_gap_bytes,
                                      std::vector<std::pair<std::uint64_t, std::uint64_t>>* gaps = nullptr) {
  return crc_of_ranges(std::move(ranges), kText.size(), most_gap_bytes,
                       [&](std::uint64_t begin, std::uint64_t end) {
                         if (gaps != nullptr) gaps->emplace_back(begin, end);
                         return range_of(begin, end).crc32;
                       });
}

TEST(ReadSumsTest, RangesThatFollowEachOtherBecomeOne) {
  ReadSums sums;
  const auto read = [&](const char* file, std::uint64_t begin, std::uint64_t end) {
    sums.add(file, begin, bytes_of(kText).subspan(begin, end - begin));
  };
  read("a", 500, 600);
  read("a", 0, 100);
  read("b", 7, 8);
  read("a", 100, 400);
  read("a", 600, 600);
  read("a", 400, 500);
  EXPECT_THAT(sums.take(),
              ElementsAre(Pair("a", ElementsAre(range_of(0, 600))), Pair("b", ElementsAre(range_of(7, 8)))));
  EXPECT_THAT(sums.take(), ElementsAre());
}

TEST(ReadSumsTest, ASourceNotesWhatIsReadOfIt) {
  const TempDir dir;
  write_file(dir / "f", kText);
  const File file = File::open_read(dir / "f");
  FileSource source(file);
  ReadSums sums;
  const std::string name = "f";
  SummingSource summing(source, name, sums);
  std::vector<std::byte> out(300);
  summing.read_at(10, out);
  EXPECT_EQ(summing.size(), kText.size());
  EXPECT_THAT(sums.take(), ElementsAre(Pair("f", ElementsAre(range_of(10, 310)))));
  EXPECT_EQ(crc32_of(file, 10, 310), range_of(10, 310).crc32);
}

TEST(ReadSumsTest, TheSumOfAFileFollowsFromItsRangesAndWhatLiesBetween) {
  const std::uint32_t whole = crc32(bytes_of(kText));
  std::vector<std::pair<std::uint64_t, std::uint64_t>> gaps;
  // Ranks have read some ranges twice, and one that overlaps another.
  EXPECT_EQ(crc_with({range_of(600, 900), range_of(100, 500), range_of(100, 300), range_of(450, 700),
                      range_of(600, 900)},
                     300, &gaps),
            whole);
  EXPECT_THAT(gaps, ElementsAre(Pair(0, 100), Pair(500, 600), Pair(900, 1000)));
  EXPECT_EQ(crc_with({range_of(100, 500)}, 599), std::nullopt);
  EXPECT_EQ(crc_with({}, 1000), whole);
  EXPECT_EQ(crc_with({range_of(0, 1000)}, 0), whole);
  SummedRange wrong = range_of(100, 500);
  wrong.crc32 ^= 1;
  EXPECT_NE(crc_with({wrong}, 1000), whole);
  // A range that reaches beyond the file says nothing about it.
  EXPECT_EQ(crc_with({{900, 1001, 5}}, 1000), whole);
}

TEST(ReadSumsTest, AnyDivisionOfAFileGivesItsSum) {
  std::mt19937 random(1);
  const auto number = [&](std::uint64_t most) { return random() % (most + 1); };
  for (int round = 0; round < 300; ++round) {
    std::vector<SummedRange> ranges;
    for (std::uint64_t count = number(8); count > 0; --count) {
      const std::uint64_t begin = number(999);
      ranges.push_back(range_of(begin, begin + 1 + number(999 - begin)));
    }
    if (round % 2 == 0) join_ranges(ranges);
    EXPECT_EQ(crc_with(ranges, 1000), crc32(bytes_of(kText)));
  }
}

}  // namespace
}  // namespace accel::ckpt
