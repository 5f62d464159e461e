#include "ckpt/plan/local.hpp"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <nlohmann/json.hpp>

#include "ckpt/pickle/reader.hpp"
#include "ckpt/torch/tensor.hpp"
#include "ckpt/zip/index.hpp"
#include "output_helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::state_of;
using testing::TempDir;
using testing::Truth;
using Json = nlohmann::json;

/// The bytes of the elements in a rank's `.bin`, by name.
std::map<std::string, std::string> read_bin(const std::filesystem::path& path, const Json& tensors) {
  const File file = File::open_read(path);
  const FileWindow window(file, 0, file.size());
  const ZipIndex zip(window);
  std::map<std::string, std::string> found;
  const pickle::Value root = pickle::parse(read_record(window, *zip.find("data.pkl")));
  for (const auto& [key, value] : *pickle::mapping_of(root)) {
    const std::string& name = *key.get<std::string>();
    const TorchTensor tensor = torch_tensor_of(value).value();
    const Json& entry = tensors.at(name);
    EXPECT_EQ(torch_name(tensor.dtype), entry.at("dtype").get<std::string>());
    EXPECT_EQ(tensor.shape,
              Dims{entry.at("end").get<std::int64_t>() - entry.at("begin").get<std::int64_t>()});
    const auto data = read_record(window, *zip.find("data/" + tensor.storage_key));
    found[name] = {reinterpret_cast<const char*>(data.data()), data.size()};
  }
  return found;
}

/// The parts of all ranks, put together as the `.json` files say.
std::map<std::string, std::string> merge(const std::filesystem::path& directory, const std::string& base,
                                         int ranks) {
  std::map<std::string, std::string> whole;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string stem = base + "_rank" + std::to_string(rank);
    const Json document = Json::parse(testing::read_file(directory / (stem + ".json")));
    EXPECT_EQ(document.at("version"), 1);
    EXPECT_EQ(document.at("rank"), rank);
    EXPECT_EQ(document.at("world_size"), ranks);
    const auto parts = read_bin(directory / (stem + ".bin"), document.at("tensors"));
    EXPECT_EQ(parts.size(), document.at("tensors").size());
    for (const auto& [name, bytes] : parts) {
      const DType dtype = dtype_of_torch_name(document["tensors"][name]["dtype"].get<std::string>()).value();
      EXPECT_EQ(whole[name].size(),
                document["tensors"][name]["begin"].get<std::size_t>() * item_bytes(dtype));
      whole[name] += bytes;
    }
  }
  return whole;
}

RC_GTEST_PROP(PlanLocalTest, TheRanksTogetherAreTheTensors, ()) {
  std::vector<Truth> truths;
  const auto count = *rc::gen::inRange(0, 4);
  for (int i = 0; i < count; ++i) {
    const Dims shape = *rc::gen::resize(4, rc::gen::container<Dims>(rc::gen::inRange<std::int64_t>(0, 7)));
    const DType dtype = *rc::gen::element(DType::kBool, DType::kBFloat16, DType::kUInt64, DType::kFloat8E5M2);
    truths.push_back(Truth::make({"h." + std::to_string(i)}, dtype, shape, 100U * static_cast<unsigned>(i)));
  }
  const int ranks = *rc::gen::inRange(1, 9);
  const TempDir dir;
  const OutputPlan plan = plan_local(state_of(truths), ranks, "m");
  RC_ASSERT(plan.files.size() == 2 * static_cast<std::size_t>(ranks));
  testing::write_plan(dir.path(), plan, truths);
  std::map<std::string, std::string> expected;
  for (const Truth& truth : truths) expected[fqn_of(truth.path)] = truth.data;
  RC_ASSERT(merge(dir.path(), "m", ranks) == expected);
}

TEST(PlanLocalTest, SplitsEvenlyAndTheLastRanksMayHaveNothing) {
  const std::vector<Truth> truths{Truth::make({"a"}, DType::kInt8, {5}, 1)};
  const OutputPlan plan = plan_local(state_of(truths), 4, "m");
  std::vector<std::string> ranges;
  for (std::size_t i = 1; i < plan.files.size(); i += 2) {
    const Json entry = Json::parse(std::get<std::string>(plan.files[i].segments[0].content))["tensors"]["a"];
    ranges.push_back(entry["begin"].dump() + ":" + entry["end"].dump());
  }
  EXPECT_EQ(ranges, (std::vector<std::string>{"0:2", "2:4", "4:5", "5:5"}));
}

TEST(PlanLocalTest, TiedItemsShareTheirStorageOnEachRank) {
  const std::vector<Truth> truths{Truth::make({"a"}, DType::kFloat32, {7, 3}, 1),
                                  Truth::make({"b"}, DType::kFloat32, {7, 3}, 1)};
  OutputState state = state_of(truths);
  state.tensors[1].tied_to = 0;
  const TempDir dir;
  testing::write_plan(dir.path(), plan_local(state, 2, "m"), truths);
  const auto whole = merge(dir.path(), "m", 2);
  EXPECT_EQ(whole.at("a"), truths[0].data);
  EXPECT_EQ(whole.at("b"), truths[0].data);
  EXPECT_LT(std::filesystem::file_size(dir / "m_rank0.bin"), 2 * 44 + 2000U);
  const File file = File::open_read(dir / "m_rank0.bin");
  EXPECT_EQ(ZipIndex(FileWindow(file, 0, file.size())).find("data/1"), nullptr);
}

TEST(PlanLocalTest, NamesWithQuotesStayJson) {
  const std::vector<Truth> truths{Truth::make({"a\"\\\n"}, DType::kInt8, {1}, 1)};
  const TempDir dir;
  testing::write_plan(dir.path(), plan_local(state_of(truths), 1, "m"), truths);
  EXPECT_EQ(merge(dir.path(), "m", 1).count("a\"\\\n"), 1U);
}

TEST(PlanLocalTest, RefusesObjectsAndNoRanks) {
  EXPECT_THAT(error_of(ErrorKind::kFailure,
                       [] {
                         (void)plan_local({{}, {{{"lr"}, 0.5}, {{"x"}, 1}}}, 2, "m");
                       }),
              HasSubstr("'lr' is not a tensor, nor are 1 more"));
  EXPECT_THAT(error_of(ErrorKind::kUsage, [] { (void)plan_local({}, 0, "m"); }), HasSubstr("0 ranks"));
}

}  // namespace
}  // namespace accel::ckpt
