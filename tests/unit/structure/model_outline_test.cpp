#include "structure/model_outline.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "base/error.hpp"
#include "temp_dir.hpp"

namespace accel {
namespace {

using testing::TempDir;
using testing::write_file;

const std::string kText = "0123456789abcdefghij";

ModelOutline outline_of(std::map<std::uint64_t, std::uint64_t> holes) {
  const TempDir dir;
  write_file(dir / "x", kText);
  return ModelOutline::of(File::open_read(dir / "x"), std::move(holes));
}

std::string read(const ModelOutline& outline, std::uint64_t offset, std::size_t bytes) {
  std::string text(bytes, '?');
  outline.read(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.message();
  }
  return "nothing";
}

TEST(ModelOutlineTest, HasEverythingButTheHoles) {
  const ModelOutline taken = outline_of({{3, 2}, {10, 5}});
  const ModelOutline outline = ModelOutline::from_bytes(taken.to_bytes());
  EXPECT_EQ(taken.to_bytes().size(), 6 * 8 + kText.size() - 7);
  EXPECT_EQ(outline.file_bytes(), kText.size());
  EXPECT_EQ(outline.holes(), taken.holes());
  std::string expected = kText;
  expected.replace(3, 2, 2, '\0').replace(10, 5, 5, '\0');
  for (std::size_t begin = 0; begin <= kText.size(); ++begin) {
    for (std::size_t end = begin; end <= kText.size(); ++end) {
      EXPECT_EQ(read(outline, begin, end - begin), expected.substr(begin, end - begin))
          << begin << " " << end;
      const bool in_hole = begin < end && ((begin < 5 && end > 3) || (begin < 15 && end > 10));
      EXPECT_EQ(outline.has(begin, end - begin), !in_hole) << begin << " " << end;
    }
    EXPECT_EQ(error_of([&] { (void)read(outline, begin, kText.size() - begin + 1); }),
              "the outline of the model file is shorter than what is read");
  }
}

TEST(ModelOutlineTest, OneOfNoHolesIsTheFile) {
  EXPECT_EQ(read(ModelOutline::from_bytes(outline_of({}).to_bytes()), 0, kText.size()), kText);
}

TEST(ModelOutlineTest, RefusesWhatIsNone) {
  const std::vector<std::byte> bytes = outline_of({{3, 2}, {10, 5}}).to_bytes();
  const auto with = [&](std::size_t number, std::uint64_t value) {
    std::vector<std::byte> changed = bytes;
    std::memcpy(changed.data() + number * 8, &value, 8);
    return error_of([&] { (void)ModelOutline::from_bytes(changed); });
  };
  const std::string length = "the outline of the model file is not as long as it says";
  EXPECT_EQ(with(0, kText.size()), "nothing");
  EXPECT_EQ(with(0, 21), length);
  EXPECT_EQ(with(0, 4), length);
  EXPECT_EQ(with(1, 100), "the outline of the model file ends early");
  EXPECT_EQ(with(3, 8), "the outline of the model file has holes that overlap");
  EXPECT_EQ(with(5, 11), length);
  EXPECT_NE(with(5, ~std::uint64_t{0}), "nothing");
  EXPECT_EQ(error_of([&] { (void)ModelOutline::from_bytes(std::span(bytes).first(bytes.size() - 1)); }),
            length);
  EXPECT_EQ(error_of([&] { (void)ModelOutline::from_bytes(std::span(bytes).first(12)); }),
            "the outline of the model file ends early");
}

}  // namespace
}  // namespace accel
