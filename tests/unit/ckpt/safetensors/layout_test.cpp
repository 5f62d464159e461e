#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <set>

#include "ckpt/safetensors/header.hpp"
#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::bytes_of;
using testing::error_of;
using ::testing::HasSubstr;

TEST(SafetensorsPlanTest, IsWhatTheOfficialWriterGives) {
  const SafetensorsLayout layout = plan_safetensors({{"b", DType::kFloat16, {2}, 0, 0},
                                                     {"z", DType::kInt64, {}, 0, 0},
                                                     {"a\"\n", DType::kFloat16, {0, 3}, 0, 0}},
                                                    {{"format", "pt"}});
  EXPECT_EQ(layout.prefix.substr(8),
            R"({"__metadata__":{"format":"pt"},"z":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
            R"("a\"\n":{"dtype":"F16","shape":[0,3],"data_offsets":[8,8]},)"
            R"("b":{"dtype":"F16","shape":[2],"data_offsets":[8,12]}})"
            "   ");
  EXPECT_EQ(layout.prefix.size() % 8, 0U);
  EXPECT_EQ(layout.total_bytes(), layout.prefix.size() + 12);
}

TEST(SafetensorsPlanTest, RefusesWhatTheFormatCannotHold) {
  EXPECT_THAT(error_of(ErrorKind::kFailure,
                       [] {
                         (void)plan_safetensors({{"a", DType::kComplex128, {}, 0, 0}}, {});
                       }),
              HasSubstr("complex128"));
  EXPECT_THAT(
      error_of(ErrorKind::kFailure,
               [] {
                 (void)plan_safetensors({{"a", DType::kBool, {}, 0, 0}, {"a", DType::kInt8, {}, 0, 0}}, {});
               }),
      HasSubstr("two tensors"));
  EXPECT_THROW((void)plan_safetensors({{"__metadata__", DType::kBool, {}, 0, 0}}, {}), Error);
  EXPECT_THROW((void)plan_safetensors({{"\xff", DType::kBool, {}, 0, 0}}, {}), Error);
}

RC_GTEST_PROP(SafetensorsPropertyTest, WhatIsPlannedIsParsed, ()) {
  std::vector<SafetensorsEntry> entries;
  const auto names = *rc::gen::container<std::set<std::string>>(rc::gen::string<std::string>());
  for (const std::string& name : names) {
    const DTypeInfo& info =
        *rc::gen::elementOf(std::vector<DTypeInfo>(all_dtypes().begin(), all_dtypes().end()));
    if (info.safetensors_name.empty()) continue;
    const Dims shape = *rc::gen::resize(3, rc::gen::container<Dims>(rc::gen::inRange<std::int64_t>(0, 5)));
    entries.push_back({name, info.dtype, shape, 0, 0});
  }
  std::optional<SafetensorsLayout> layout;
  try {
    layout = plan_safetensors(entries, {{"format", "pt"}});
  } catch (const Error&) {
    return;  // A name that is not UTF-8.
  }
  const SafetensorsHeader found =
      parse_safetensors_header(bytes_of(layout->prefix).subspan(8), layout->header.buffer_bytes);
  RC_ASSERT(found.buffer_offset == layout->header.buffer_offset);
  RC_ASSERT(found.entries.size() == entries.size());
  std::map<std::string, const SafetensorsEntry*> planned;
  for (const SafetensorsEntry& entry : layout->header.entries) planned[entry.name] = &entry;
  for (const SafetensorsEntry& entry : found.entries) {
    const SafetensorsEntry& want = *planned.at(entry.name);
    RC_ASSERT(entry.dtype == want.dtype && entry.shape == want.shape && entry.begin == want.begin &&
              entry.end == want.end);
  }
}

TEST(SafetensorsPlanTest, TheKeyOfTheMetadataIsNoName) {
  const std::string message = testing::error_of(ErrorKind::kFailure, [] {
    (void)plan_safetensors({{"__metadata__", DType::kFloat32, {2}, 0, 0}}, {});
  });
  EXPECT_THAT(message, ::testing::HasSubstr("called '__metadata__'"));
}

}  // namespace
}  // namespace accel::ckpt
