#include "ckpt/plan/torch.hpp"

#include <gmock/gmock.h>

#include <chrono>

#include "ckpt/pickle/reader.hpp"
#include "ckpt/torch/tensor.hpp"
#include "ckpt/zip/index.hpp"
#include "output_helpers.hpp"

namespace accel::ckpt {
namespace {

using pickle::Value;
using testing::error_of;
using testing::file_bytes;
using ::testing::HasSubstr;
using testing::state_of;
using testing::TempDir;
using testing::Truth;

/// A torch.save archive, as a value and its storages.
class Archive {
 public:
  Archive(const OutputFile& plan, const std::vector<Truth>& truths) {
    testing::write_file(dir_ / "a", file_bytes(plan, truths));
    const File file = File::open_read(dir_ / "a");
    const FileWindow window(file, 0, file.size());
    const ZipIndex zip(window);
    root_ = zip.root();
    for (const ZipEntry& entry : zip.entries()) {
      EXPECT_EQ(data_offset_of(window, entry) % 64, 0U) << entry.name;
      const std::vector<std::byte> data = read_record(window, entry);
      records_[entry.name.substr(root_.size() + 1)] = {reinterpret_cast<const char*>(data.data()),
                                                       data.size()};
    }
    value_ = pickle::parse(testing::bytes_of(records_.at("data.pkl")));
  }

  [[nodiscard]] const Value& value() const { return value_; }
  [[nodiscard]] const std::string& root() const { return root_; }
  [[nodiscard]] const std::map<std::string, std::string>& records() const { return records_; }

  void expect_tensor(const Value* value, const Truth& truth) const {
    ASSERT_NE(value, nullptr);
    const auto tensor = torch_tensor_of(*value);
    ASSERT_TRUE(tensor);
    EXPECT_EQ(tensor->dtype, truth.dtype);
    EXPECT_EQ(tensor->shape, truth.shape);
    EXPECT_EQ(tensor->strides, row_major_strides(truth.shape));
    EXPECT_EQ(records_.at("data/" + tensor->storage_key), truth.data);
  }

 private:
  TempDir dir_;
  std::string root_;
  std::map<std::string, std::string> records_;
  Value value_;
};

const Value* at(const Value* value, std::string_view key) {
  return value != nullptr && pickle::mapping_of(*value) != nullptr
             ? pickle::find(*pickle::mapping_of(*value), key)
             : nullptr;
}

OutputState one_object(Value value) { return {{}, {{{"a", "b"}, std::move(value)}}}; }

TEST(PlanTorchTest, AFlatStateDictOfEveryDType) {
  std::vector<Truth> truths;
  for (const DTypeInfo& info : all_dtypes()) {
    if (!info.in_torch) continue;
    truths.push_back(Truth::make({"h.0." + std::string(info.torch_name)}, info.dtype, {3, 5},
                                 static_cast<std::uint32_t>(truths.size())));
  }
  truths.push_back(Truth::make({"scalar"}, DType::kFloat32, {}, 7));
  truths.push_back(Truth::make({"empty"}, DType::kFloat32, {0, 3}, 7));
  const Archive archive(plan_torch_file("dir/pytorch_model.bin", state_of(truths)), truths);
  EXPECT_EQ(archive.root(), "pytorch_model");
  EXPECT_EQ(archive.records().at(".data/serialization_id").size(), 40U);
  for (const Truth& truth : truths) {
    archive.expect_tensor(at(&archive.value(), std::get<std::string>(truth.path[0])), truth);
  }
}

TEST(PlanTorchTest, NestsByPathAndMakesListsOfWholeRangesOfIntegers) {
  const std::vector<Truth> truths{Truth::make({"state", "w.x", "step"}, DType::kFloat32, {}, 1),
                                  Truth::make({"list", std::int64_t{1}}, DType::kInt8, {2}, 2),
                                  Truth::make({"list", std::int64_t{0}}, DType::kInt8, {3}, 3),
                                  Truth::make({"holes", std::int64_t{1}}, DType::kInt8, {3}, 4)};
  OutputState state = state_of(truths);
  state.objects = {{{"param_groups", std::int64_t{0}, "lr"}, 0.5},
                   {{"param_groups", std::int64_t{0}, "params"}, pickle::List{{Value("w.x")}}}};
  const Archive archive(plan_torch_file("o.bin", state), truths);
  archive.expect_tensor(at(at(at(&archive.value(), "state"), "w.x"), "step"), truths[0]);

  const pickle::Values* list = pickle::sequence_of(*at(&archive.value(), "list"));
  ASSERT_NE(list, nullptr);
  ASSERT_EQ(list->size(), 2U);
  archive.expect_tensor(&(*list)[0], truths[2]);
  archive.expect_tensor(&(*list)[1], truths[1]);

  const pickle::Pairs* holes = pickle::mapping_of(*at(&archive.value(), "holes"));
  ASSERT_NE(holes, nullptr);
  EXPECT_TRUE(pickle::same(holes->at(0).first, Value(1)));

  const pickle::Values* groups = pickle::sequence_of(*at(&archive.value(), "param_groups"));
  ASSERT_NE(groups, nullptr);
  EXPECT_TRUE(pickle::same(*at(&groups->at(0), "lr"), Value(0.5)));
  EXPECT_TRUE(pickle::same(*at(&groups->at(0), "params"), Value(pickle::List{{Value("w.x")}})));
}

TEST(PlanTorchTest, DictsWithTheKeysOfAListStayDicts) {
  constexpr std::int64_t k0 = 0;
  const std::vector<Truth> truths{Truth::make({"state", k0, "step"}, DType::kFloat32, {}, 1),
                                  Truth::make({"experts", k0}, DType::kInt8, {2}, 2),
                                  Truth::make({"list", k0, k0}, DType::kInt8, {2}, 3)};
  OutputState state = state_of(truths);
  state.objects = {{{"param_groups", k0, "lr"}, 0.5}};
  state.dicts = {{"experts"}, {"list", k0}, {"not", "selected"}};
  const Archive archive(plan_torch_file("o.bin", state), truths);
  // The first one is an optimizer's.
  for (const char* key : {"state", "experts"})
    EXPECT_NE(pickle::mapping_of(*at(&archive.value(), key)), nullptr) << key;
  const pickle::Values* list = pickle::sequence_of(*at(&archive.value(), "list"));
  ASSERT_NE(list, nullptr);
  EXPECT_NE(pickle::mapping_of(list->at(0)), nullptr);
  EXPECT_NE(pickle::sequence_of(*at(&archive.value(), "param_groups")), nullptr);
}

TEST(PlanTorchTest, TiedItemsShareAStorage) {
  const std::vector<Truth> truths{Truth::make({"a"}, DType::kFloat32, {2, 3}, 1),
                                  Truth::make({"b"}, DType::kFloat32, {2, 3}, 1),
                                  Truth::make({"c"}, DType::kFloat32, {3, 2}, 1)};
  OutputState state = state_of(truths);
  state.tensors[1].tied_to = 0;
  const Archive archive(plan_torch_file("t.bin", state), truths);
  EXPECT_EQ(torch_tensor_of(*at(&archive.value(), "b"))->storage_key, "0");
  EXPECT_EQ(torch_tensor_of(*at(&archive.value(), "c"))->storage_key, "1");
  EXPECT_FALSE(archive.records().contains("data/2"));
  for (const Truth& truth : truths) {
    archive.expect_tensor(at(&archive.value(), std::get<std::string>(truth.path[0])), truth);
  }
}

TEST(PlanTorchTest, NothingAndASingleValue) {
  const Archive empty(plan_torch_file("e.bin", {}), {});
  ASSERT_NE(pickle::mapping_of(empty.value()), nullptr);
  EXPECT_TRUE(pickle::mapping_of(empty.value())->empty());
  const std::vector<Truth> truths{Truth::make({}, DType::kFloat32, {2}, 1)};
  const Archive single(plan_torch_file("s.bin", state_of(truths)), truths);
  single.expect_tensor(&single.value(), truths[0]);
}

TEST(PlanTorchTest, RefusesAllObjectsThatWeightsOnlyWouldRefuse) {
  OutputState state = one_object(pickle::reduce(pickle::Global("numpy", "ndarray"), {}));
  state.objects.push_back({{"fine"}, 1});
  state.objects.push_back({{"bad"}, pickle::Global("builtins", "eval")});
  EXPECT_EQ(error_of(ErrorKind::kFailure, [&] { (void)plan_torch_file("a.bin", state); }),
            "torch.load(weights_only=True) would refuse 2 of the objects: 'a.b' has numpy.ndarray, 'bad' has "
            "builtins.eval");
}

TEST(PlanTorchTest, RefusesPathsThatContradictEachOtherOrAreTooDeep) {
  const auto rejection = [](StatePath a, StatePath b) {
    const std::vector<Truth> truths{Truth::make(std::move(a), DType::kInt8, {1}, 1),
                                    Truth::make(std::move(b), DType::kInt8, {1}, 1)};
    return error_of(ErrorKind::kFailure, [&] { (void)plan_torch_file("a.bin", state_of(truths)); });
  };
  EXPECT_THAT(rejection({"a"}, {"a", "b"}), HasSubstr("'a.b' would have to be both"));
  EXPECT_THAT(rejection({"a", "b"}, {"a"}), HasSubstr("'a' would have to be both"));
  EXPECT_THAT(rejection({"a", "b"}, {"a", "b"}), HasSubstr("two values"));
  EXPECT_THAT(rejection({}, {"a"}), HasSubstr("both"));
  EXPECT_THAT(rejection({"a"}, StatePath(100'000, PathKey("k"))), HasSubstr("100000 levels deep"));
}

TEST(PlanTorchTest, ALayoutBeyondFourGigabytesHasItsRecordsWhereTheyBelong) {
  OutputState state;
  const Dims large{3, std::int64_t{1} << 30};
  for (std::size_t i = 0; i < 2; ++i) {
    state.tensors.push_back({{"w" + std::to_string(i)}, i, DType::kFloat32, large, std::nullopt});
  }
  const OutputFile file = plan_torch_file("m.bin", state);
  check_plan({{file}});
  EXPECT_GT(file.bytes, std::uint64_t{24} << 30);
  EXPECT_THAT(file.archives.at(0).layout.header(5), HasSubstr(std::string("\x01\x00", 2)));
}

TEST(PlanTorchTest, TimeIsLinearInTheNumberOfTensors) {
  const auto seconds_for = [](std::int64_t count) {
    OutputState state;
    for (std::int64_t i = 0; i < count; ++i) {
      state.tensors.push_back({{"state", "layers." + std::to_string(i), "exp_avg"},
                               static_cast<std::size_t>(i),
                               DType::kFloat32,
                               {2},
                               std::nullopt});
    }
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_GT(plan_torch_file("o.bin", state).bytes, 0U);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const double few = seconds_for(2'000);
  EXPECT_LT(seconds_for(40'000), 20 * 8 * few + 0.5);
}

}  // namespace
}  // namespace accel::ckpt
