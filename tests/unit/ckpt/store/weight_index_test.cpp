#include "ckpt/store/weight_index.hpp"

#include <gmock/gmock.h>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::TempDir;
using testing::write_file;

TEST(WeightIndexTest, MapsTensorsToFiles) {
  const TempDir dir;
  write_file(dir / "i.json",
             R"({"metadata": {"total_size": 8}, "weight_map": {"b": "2", "a": "1", "c": "2"}})");
  const WeightIndex index = read_weight_index(dir / "i.json");
  EXPECT_EQ(index.files.at("a"), "1");
  EXPECT_THAT(index.file_names(), ElementsAre("1", "2"));
  check_weight_index(index, "2", {"b", "c"});
}

TEST(WeightIndexTest, RejectsWhatIsNoIndex) {
  const TempDir dir;
  for (const char* text :
       {"", "{", "[]", "3", "{}", R"({"weight_map": []})", R"({"weight_map": {"a": 1}})"}) {
    write_file(dir / "i.json", text);
    EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)read_weight_index(dir / "i.json"); }),
                HasSubstr("i.json"))
        << text;
  }
}

TEST(WeightIndexTest, RejectsFilesThatDoNotFit) {
  const WeightIndex index{"i.json", {{"a", "1"}, {"b", "2"}}};
  const auto rejection = [&](const std::string& file, const std::vector<std::string>& names) {
    return error_of(ErrorKind::kCorrupt, [&] { check_weight_index(index, file, names); });
  };
  EXPECT_THAT(rejection("1", {"a", "x"}), HasSubstr("does not list 'x', which '1' has"));
  EXPECT_THAT(rejection("1", {"a", "b"}), HasSubstr("says that 'b' is in '2', but '1' has it"));
  EXPECT_THAT(rejection("1", {}), HasSubstr("says that 'a' is in '1', which has no such tensor"));
}

TEST(WeightIndexTest, NamesOfShards) {
  const std::optional<WeightShard> shard = parse_weight_shard("my-model-00002-of-00013.safetensors");
  ASSERT_TRUE(shard);
  EXPECT_EQ(shard->stem, "my-model");
  EXPECT_EQ(shard->number, 2);
  EXPECT_EQ(shard->count, 13);
  EXPECT_EQ(shard->extension, ".safetensors");
  EXPECT_EQ(to_string(*shard), "my-model-00002-of-00013.safetensors");
  const char* six = "model-00001-of-000163.safetensors";
  ASSERT_TRUE(parse_weight_shard(six));
  EXPECT_EQ(parse_weight_shard(six)->count, 163);
  EXPECT_EQ(to_string(*parse_weight_shard(six)), six);
  for (const char* other : {"", "model.safetensors", "model-00001-of-0000163.safetensors",
                            "model-00002-of-0013.safetensors", "00002-of-00013.bin",
                            "model-0000x-of-00013.bin", "model--0002-of-00013.bin", "model-00002-of-00013"}) {
    EXPECT_FALSE(parse_weight_shard(other)) << other;
  }
}

}  // namespace
}  // namespace accel::ckpt
