#include "ckpt/convert/load.hpp"

#include <gmock/gmock.h>

#include "ckpt/pickle/writer.hpp"
#include "ckpt/torch/tensor.hpp"
#include "ckpt/zip/index.hpp"
#include "output_helpers.hpp"
#include "raw_checkpoint.hpp"

namespace accel::ckpt {
namespace {

using pickle::Dict;
using pickle::Global;
using pickle::Value;
using testing::bytes_of;
using testing::error_of;
using ::testing::HasSubstr;
using testing::RawCheckpoint;
using testing::state_of;
using testing::TempDir;
using testing::Truth;

const char* const kCode =
    "class M(Module):\n  __parameters__ = [\"w\", \"tied\", ]\n  __buffers__ = [\"b\", ]\n";

/// A model with `w` and `tied` in one storage, `b` in another one, and a plain tensor.
class PlanTorchScriptTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const Value w = pickle_of_tensor(DType::kUInt8, {2, 3}, "0");
    const Value module =
        pickle::instance(Global("__torch__", "M"), Dict{{{"w", w},
                                                         {"tied", w},
                                                         {"b", pickle_of_tensor(DType::kBFloat16, {2}, "1")},
                                                         {"plain", pickle_of_tensor(DType::kUInt8, {4}, "2")},
                                                         {"training", true}}});
    records_ = {{"m/extra/note", "hello"},
                {"m/data/0", "oldold"},
                {"m/data/1", "oldb"},
                {"m/data/2", "keep"},
                {"m/data.pkl", pickle::write(module)},
                {"m/code/__torch__.py", kCode},
                {"m/constants.pkl", "\x80\x02)."},
                {"m/large", testing::pattern(100'000, 5)}};
    write_model();
  }

  void write_model() {
    std::vector<ZipRecord> records;
    std::vector<OutputContent> contents;
    for (const auto& [name, data] : records_) {
      records.push_back({name, data.size()});
      contents.emplace_back(data);
    }
    OutputFile file;
    append_archive(file, 0, ZipLayout(std::move(records)), std::move(contents));
    testing::write_file(model_, testing::file_bytes(file, {}));
  }

  TorchScriptPlan plan(const std::vector<Truth>& truths, Missing missing = Missing::kRefuse) {
    RawCheckpoint source(truths);
    const std::unique_ptr<Checkpoint> model = open_checkpoint(model_);
    return plan_torchscript("new.pt", *model, state_of(truths), source, missing);
  }

  std::map<std::string, std::string> written(const TorchScriptPlan& plan, const std::vector<Truth>& truths) {
    testing::write_file(dir_ / "new.pt", testing::file_bytes(plan.file, truths));
    const File file = File::open_read(dir_ / "new.pt");
    const FileWindow window(file, 0, file.size());
    const ZipIndex zip(window);
    std::map<std::string, std::string> records;
    for (const ZipEntry& entry : zip.entries()) {
      EXPECT_EQ(entry.method, 0);
      EXPECT_EQ(data_offset_of(window, entry) % 64, 0U) << entry.name;
      const std::vector<std::byte> data = read_record(window, entry);
      records[entry.name] = {reinterpret_cast<const char*>(data.data()), data.size()};
    }
    return records;
  }

  static Truth w(const char* name, std::string data) {
    return {{name}, DType::kUInt8, {2, 3}, std::move(data)};
  }
  static Truth b() { return {{"b"}, DType::kBFloat16, {2}, "NEWB"}; }

  using OutputContent = decltype(OutputSegment::content);

  TempDir dir_;
  std::filesystem::path model_ = dir_ / "model.pt";
  std::vector<std::pair<std::string, std::string>> records_;
};

TEST_F(PlanTorchScriptTest, ReplacesParametersAndBuffersAndNothingElse) {
  const std::vector<Truth> truths{w("w", "newnew"), w("tied", "newnew"), b()};
  const TorchScriptPlan plan = this->plan(truths);
  EXPECT_EQ(plan.loaded.size(), 3U);
  EXPECT_TRUE(plan.kept.empty());
  std::map<std::string, std::string> expected(records_.begin(), records_.end());
  expected["m/data/0"] = "newnew";
  expected["m/data/1"] = "NEWB";
  EXPECT_EQ(written(plan, truths), expected);
}

TEST_F(PlanTorchScriptTest, ATiedTensorMayBeThereUnderOneName) {
  const std::vector<Truth> truths{w("tied", "newnew"), b()};
  EXPECT_EQ(written(plan(truths), truths).at("m/data/0"), "newnew");
}

TEST_F(PlanTorchScriptTest, TiedTensorsMustAgree) {
  EXPECT_THAT(error_of(ErrorKind::kFailure,
                       [&] {
                         (void)plan({w("w", "newnew"), w("tied", "NEWnew"), b()});
                       }),
              HasSubstr("'w' and 'tied' share their bytes"));
}

TEST_F(PlanTorchScriptTest, ListsAllThatDoesNotFit) {
  const std::vector<Truth> truths{{{"w"}, DType::kUInt8, {3, 2}, "newnew"},
                                  {{"tied"}, DType::kInt64, {2, 3}, std::string(48, 'x')},
                                  {{"more"}, DType::kInt8, {1}, "x"},
                                  {{"plain"}, DType::kUInt8, {4}, "abcd"}};
  EXPECT_EQ(error_of(ErrorKind::kFailure, [&] { (void)plan(truths); }),
            "the checkpoint does not fit the model: missing 'b'; other shapes: 'w' is [3, 2], the model's is "
            "[2, 3]; "
            "other types: 'tied' is int64, the model's is uint8; unexpected 'more', 'plain'");
}

TEST_F(PlanTorchScriptTest, AnAdapterNeedsAModelThatHasItsParameters) {
  const std::vector<Truth> adapter{w("q.lora_A.weight", "newnew"), w("q.lora_B.weight", "newnew")};
  for (const Missing missing : {Missing::kRefuse, Missing::kKeep}) {
    EXPECT_THAT(error_of(ErrorKind::kFailure, [&] { (void)plan(adapter, missing); }),
                AllOf(HasSubstr("is an adapter of PEFT"),
                      HasSubstr("has no parameter of an adapter, such as 'q.lora_A.weight'")));
  }
  // Where the model has one of them, it is an adapter of this kind, and what does not fit is listed.
  EXPECT_THAT(error_of(ErrorKind::kFailure,
                       [&] {
                         (void)plan({w("q.lora_A.weight", "newnew"), w("w", "newnew")});
                       }),
              HasSubstr("missing 'b'; unexpected 'q.lora_A.weight'"));
}

TEST_F(PlanTorchScriptTest, WhatIsMissingMayBeKept) {
  const std::vector<Truth> truths{b()};
  EXPECT_THAT(error_of(ErrorKind::kFailure, [&] { (void)plan(truths); }), HasSubstr("missing 'w', 'tied'"));
  const TorchScriptPlan plan = this->plan(truths, Missing::kKeep);
  EXPECT_EQ(plan.kept, (std::vector<std::string>{"w", "tied"}));
  const auto records = written(plan, truths);
  EXPECT_EQ(records.at("m/data/0"), "oldold");
  EXPECT_EQ(records.at("m/data/1"), "NEWB");
}

TEST_F(PlanTorchScriptTest, TensorsBecomeTheModelsType) {
  const std::vector<Truth> truths{w("w", "newnew"), {{"b"}, DType::kFloat32, {2}, std::string(8, '\0')}};
  const TorchScriptPlan plan = this->plan(truths);
  const auto* content = std::get_if<TensorContent>(&plan.file.segments.at(2).content);
  ASSERT_NE(content, nullptr);
  EXPECT_EQ(content->dtype, DType::kBFloat16);
  EXPECT_EQ(plan.file.segments.at(2).bytes, 4U);
}

TEST_F(PlanTorchScriptTest, AFlippedByteInWhatIsKeptIsFound) {
  const std::string whole = testing::read_file(model_);
  for (const std::string& needle :
       {std::string("hello"), std::string("keep"), records_.back().second.substr(70'000, 8)}) {
    std::string broken = whole;
    broken[whole.find(needle)] ^= 1;
    testing::write_file(model_, broken);
    EXPECT_THAT(error_of(ErrorKind::kCorrupt,
                         [&] {
                           (void)plan({w("w", "newnew"), b()});
                         }),
                HasSubstr("CRC"));
  }
}

}  // namespace
}  // namespace accel::ckpt
