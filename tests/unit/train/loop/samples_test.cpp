#include "train/loop/samples.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "sample_files.hpp"
#include "temp_dir.hpp"

namespace accel::train {
namespace {

using accel::testing::TempDir;
using accel::testing::write_file;
using ::testing::HasSubstr;

using Tensors = std::vector<std::pair<std::string, at::Tensor>>;

at::Tensor longs(std::initializer_list<std::int64_t> values, at::IntArrayRef shape) {
  return at::tensor(at::ArrayRef<std::int64_t>(values.begin(), values.size()), at::kLong).view(shape);
}

template <class Call>
Error error_of_call(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return {ErrorKind::kWorker, "no error"};
}

class SamplesTest : public ::testing::Test {
 protected:
  Samples open(const Tensors& tensors, const config::ModelConfig& model,
               const char* file = "data.safetensors") {
    testing::write_safetensors(dir_ / file, tensors);
    return Samples::open({"tensors", (dir_ / file).string(), 0, ""}, model);
  }

  Samples open_text(const std::string& text, const config::ModelConfig& model = {}) {
    write_file(dir_ / "text", text);
    return Samples::open({"text", (dir_ / "text").string(), 3, ""}, model);
  }

  static Batch batch(const Samples& samples, const std::vector<std::int64_t>& numbers) {
    return samples.batch(numbers, Labels::kNextTokens, at::kCPU);
  }

  /// What require_meaning_of_labels() says of these fields, for a model with this loss.
  std::string refusal(const Tensors& tensors, const std::string& loss, Labels labels) {
    config::ModelConfig model;
    model.loss = loss;
    model.inputs.clear();
    for (const auto& [name, tensor] : tensors) model.inputs.push_back(name);
    const Samples samples = open(tensors, model);
    const Error error = error_of_call([&] { samples.require_meaning_of_labels(labels); });
    if (error.message() != "no error") {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_THAT(error.advice(), HasSubstr("training.data.check_labels"));
    }
    return error.message();
  }

  TempDir dir_;
};

/// The dtypes that become int64 are the integers for which torch has no embedding.
TEST_F(SamplesTest, FieldsHaveTheirValuesAndTheDtypesThatModelsTake) {
  const Tensors stored = {{"bool", at::tensor({1, 0, 1}, at::kLong).to(at::kBool)},
                          {"byte", at::tensor({0, 128, 255}, at::kByte)},
                          {"short", at::tensor({-3, 0, 32767}, at::kShort)},
                          {"ushort", at::tensor({0, 40000, 65535}, at::kInt).to(at::kUInt16)},
                          {"int", at::tensor({-100, 0, 1 << 30}, at::kInt)},
                          {"long", at::tensor({-100, 0, 1 << 30}, at::kLong)},
                          {"half", at::tensor({0.5, -2.0, 65504.0}, at::kDouble).to(at::kHalf)},
                          {"brain", at::tensor({0.5, -2.0, 3e38}, at::kDouble).to(at::kBFloat16)},
                          {"float", at::tensor({0.5, -2.0, 1e-30}, at::kFloat)},
                          {"double", at::tensor({0.5, -2.0, 1e-300}, at::kDouble)}};
  config::ModelConfig model;
  model.loss = "model";
  model.inputs.clear();
  for (const auto& [name, tensor] : stored) model.inputs.push_back(name);
  const Samples samples = open(stored, model);
  const Batch taken = batch(samples, {0, 1, 2});
  ASSERT_EQ(taken.fields.size(), stored.size());
  for (const auto& [name, tensor] : stored) {
    const bool is_widened = name == "short" || name == "ushort" || name == "int";
    const at::ScalarType dtype = is_widened ? at::kLong : tensor.scalar_type();
    EXPECT_EQ(taken.field(name).scalar_type(), dtype) << name;
    EXPECT_TRUE(taken.field(name).equal(tensor.to(dtype))) << name;
  }
}

TEST_F(SamplesTest, AnInputOfBytesIsDividedIfAskedFor) {
  const at::Tensor bytes = at::arange(256, at::kByte).view({4, 64});
  const Tensors stored = {
      {"pictures", bytes}, {"short", at::arange(4, at::kShort)}, {"class", at::arange(4, at::kByte)}};
  config::ModelConfig model;
  model.inputs = {"pictures", "short"};
  model.targets = "class";
  EXPECT_TRUE(batch(open(stored, model), {0, 1, 2, 3}).field("pictures").equal(bytes));
  model.uint8_divisor = 255;
  const Batch taken = batch(open(stored, model, "divided.safetensors"), {0, 1, 2, 3});
  ASSERT_EQ(taken.field("pictures").scalar_type(), at::kFloat);
  const at::Tensor pictures = taken.field("pictures").flatten();
  for (std::int64_t i = 0; i < 256; ++i)
    EXPECT_EQ(pictures[i].item<float>(), static_cast<float>(i) / 255.0F) << i;
  EXPECT_EQ(taken.field("short").scalar_type(), at::kLong);
  EXPECT_EQ(taken.field("class").scalar_type(), at::kByte);
}

TEST_F(SamplesTest, WhatAProgramTakesAsIntegersIsNeverDivided) {
  const at::Tensor bytes = at::arange(8, at::kByte).view({4, 2});
  config::ModelConfig model;
  model.inputs = {"pictures", "unknown", "ids", "mask", "raw"};
  model.targets = "class";
  model.uint8_divisor = 2;
  Tensors stored;
  for (const std::string& name : model.inputs) stored.emplace_back(name, bytes);
  stored.emplace_back("class", at::arange(4, at::kByte));
  Samples samples = open(stored, model);
  EXPECT_THAT(samples.divided(), ::testing::ElementsAre("ids", "mask", "pictures", "raw", "unknown"));
  samples.set_input_dtypes({{"pictures", ckpt::DType::kFloat16},
                            {"ids", ckpt::DType::kInt64},
                            {"mask", ckpt::DType::kBool},
                            {"raw", ckpt::DType::kUInt8}});
  EXPECT_THAT(samples.divided(), ::testing::ElementsAre("pictures", "unknown"));
  const Batch taken = batch(samples, {0, 1, 2, 3});
  for (const char* name : {"pictures", "unknown"})
    EXPECT_TRUE(taken.field(name).equal(at::arange(8, at::kFloat).view({4, 2}) / 2)) << name;
  EXPECT_TRUE(taken.field("ids").equal(at::arange(8, at::kLong).view({4, 2})));
  for (const char* name : {"mask", "raw"}) EXPECT_TRUE(taken.field(name).equal(bytes)) << name;
  EXPECT_EQ(taken.field("mask").scalar_type(), at::kByte);
}

TEST_F(SamplesTest, ABatchHasTheSamplesInTheOrderOfTheirNumbersAndTheFieldsOfTheModel) {
  config::ModelConfig model;
  model.inputs = {"x"};
  model.targets = "y";
  const at::Tensor x = at::arange(24, at::kFloat).view({4, 2, 3});
  const Samples samples = open({{"unused", at::zeros({4, 9})}, {"y", at::arange(4)}, {"x", x}}, model);
  const Batch taken = batch(samples, {2, 0, 2});
  ASSERT_EQ(taken.fields.size(), 2U);
  EXPECT_EQ(taken.samples(), 3);
  EXPECT_EQ(taken.tokens, 0);
  EXPECT_TRUE(taken.field("x").equal(at::stack({x[2], x[0], x[2]})));
  EXPECT_TRUE(taken.field("y").equal(longs({2, 0, 2}, {3})));
}

TEST_F(SamplesTest, AFieldThatTheDataDoNotHaveIsNamedBesideThoseThatTheyHave) {
  config::ModelConfig model;
  model.inputs = {"x"};
  model.targets = "z";
  const Tensors tensors = {{"x", at::zeros({2, 1})}, {"y", at::zeros({2})}};
  const Error error = error_of_call([&] { (void)open(tensors, model); });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_THAT(error.message(), HasSubstr("'z'"));
  EXPECT_THAT(error.advice(), HasSubstr("x, y"));
  model.loss = "model";  // Such a model has no targets but its inputs.
  const Samples samples = open(tensors, model);
  const Batch taken = batch(samples, {0});
  EXPECT_FALSE(taken.counted);
  EXPECT_EQ(error_of_call([&] { (void)taken.field("pixels"); }).advice(), "it has the fields x");
}

TEST_F(SamplesTest, ADtypeThatNoModelTakesIsRefusedOnlyForAFieldThatIsTaken) {
  config::ModelConfig model;
  model.loss = "model";
  model.inputs = {"x"};
  const at::Tensor eight_bits = at::ones({2, 4}).to(at::kFloat8_e4m3fn);
  EXPECT_NO_THROW((void)open({{"x", at::zeros({2})}, {"other", eight_bits}}, model));
  const Error error = error_of_call([&] { (void)open({{"x", eight_bits}}, model); });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_THAT(error.message(), HasSubstr("'x' is of float8_e4m3fn"));
}

TEST_F(SamplesTest, LabelsOfMinus100DoNotCount) {
  const Samples samples = open({{"input_ids", longs({1, 2, 3, 4, 5, 6}, {2, 3})},
                                {"labels", longs({-100, 3, 4, -100, -100, -100}, {2, 3}).to(at::kInt)}},
                               {});
  EXPECT_EQ(batch(samples, {0, 1}).counted, 2);
  EXPECT_EQ(batch(samples, {1}).counted, 0);
  EXPECT_EQ(batch(samples, {0, 0}).tokens, 6);
}

TEST_F(SamplesTest, PaddingIsWhatAMaskOfTheShapeOfTheTokensSays) {
  const at::Tensor ids = at::arange(8).view({2, 4});
  const at::Tensor mask = longs({0, 1, 1, 7, 1, 0, 0, 0}, {2, 4});
  config::ModelConfig model;
  model.inputs = {"input_ids", "attention_mask"};
  model.uint8_divisor = 255;
  int file = 0;
  const auto tokens = [&](const at::Tensor& stored) {
    const std::string name = std::to_string(file++) + ".safetensors";
    const Samples samples =
        open({{"input_ids", ids}, {"attention_mask", stored}, {"labels", at::full({2, 4}, -100)}}, model,
             name.c_str());
    EXPECT_EQ(batch(samples, {1}).tokens * 2 + batch(samples, {0}).tokens, batch(samples, {1, 0, 1}).tokens);
    return batch(samples, {0, 1}).tokens;
  };
  EXPECT_EQ(tokens(mask), 4);
  EXPECT_EQ(tokens(mask.to(at::kBool)), 4);
  EXPECT_EQ(tokens(mask.to(at::kByte)), 4);
  EXPECT_EQ(tokens(mask.to(at::kInt)), 4);
  EXPECT_EQ(tokens(mask.to(at::kUInt16)), 4);
  // These are added to scores, or say which tokens attend to which.
  EXPECT_EQ(tokens(mask.to(at::kFloat)), 8);
  EXPECT_EQ(tokens(mask.view({2, 1, 4, 1})), 8);
  model.inputs = {"input_ids"};
  EXPECT_EQ(tokens(mask), 8);
}

TEST_F(SamplesTest, DocumentsAreAsLongAsTheLongestOfTheirBatch) {
  // Three documents: 1 2 3 4 5 6 7, 8 9 and 10.
  testing::write_safetensors(dir_ / "documents.safetensors",
                             {{"input_ids", longs({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {10})},
                              {"label_mask", at::ones({10}, at::kByte)},
                              {"lengths", longs({7, 2, 1}, {3})}});
  config::DataSource source{"documents", (dir_ / "documents.safetensors").string(), 8, "", "none"};
  const auto sizes = [&](std::int64_t multiple, const std::vector<std::int64_t>& numbers) {
    source.pad_to_multiple_of = multiple;
    const Batch found = batch(Samples::open(source, {}), numbers);
    EXPECT_EQ(found.field("input_ids").sizes(), found.field("labels").sizes());
    return found.field("input_ids").sizes().vec();
  };
  using Sizes = std::vector<std::int64_t>;
  EXPECT_EQ(sizes(0, {1, 2}), Sizes({2, 8}));
  EXPECT_EQ(sizes(1, {1, 2}), Sizes({2, 2}));
  EXPECT_EQ(sizes(3, {2, 1}), Sizes({2, 3}));
  EXPECT_EQ(sizes(3, {0, 1}), Sizes({2, 8})) << "9 is more than the sequence length";
  EXPECT_EQ(sizes(100, {1}), Sizes({1, 8}));
  source.pad_to_multiple_of = 1;
  const Batch found = batch(Samples::open(source, {}), {2, 1});
  EXPECT_TRUE(at::equal(found.field("input_ids"), longs({10, 0, 8, 9}, {2, 2})));
  EXPECT_TRUE(at::equal(found.field("labels"), longs({-100, -100, 9, -100}, {2, 2})));
}

TEST_F(SamplesTest, TheTwoHalvesOfABatchNeedTheFilesOnlyForTheFirst) {
  const Samples samples = open_text("0123456789");
  const std::vector<at::Tensor> read = samples.read({2, 0}, Labels::kInputs, at::kCPU);
  std::filesystem::resize_file(dir_ / "text", 0);
  const Batch taken = samples.to_device(read, at::kCPU);
  EXPECT_TRUE(taken.field("input_ids").equal(longs({54, 55, 56, 48, 49, 50}, {2, 3})));
  EXPECT_TRUE(taken.field("labels").equal(taken.field("input_ids")));
  EXPECT_EQ(taken.counted, 6);
  const Error error = error_of_call([&] { (void)batch(samples, {0}); });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_THAT(error.message(), HasSubstr((dir_ / "text").string()));
}

TEST_F(SamplesTest, ATokenThatTheModelDoesNotKnowIsRefusedWithItsFile) {
  Samples samples = open_text("0123456789");
  samples.set_vocabularies({{"input_ids", '5'}});
  EXPECT_NO_THROW((void)batch(samples, {0}));
  const Error error = error_of_call([&] { (void)batch(samples, {0, 1}); });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_THAT(error.message(), HasSubstr((dir_ / "text").string()));
}

/// Gives a file another time of its last change.
void touch(const std::filesystem::path& path, std::chrono::seconds later) {
  std::filesystem::last_write_time(path, std::filesystem::last_write_time(path) + later);
}

TEST_F(SamplesTest, AFileThatIsTouchedIsAWarningOnce) {
  const Samples samples = open_text("0123456789");
  std::vector<std::string> warnings;
  const log::Redirect redirect([&](std::string_view line) { warnings.emplace_back(line); });
  for (int i = 0; i < 2; ++i) {
    EXPECT_NO_THROW((void)batch(samples, {0, 1}));
    touch(dir_ / "text", std::chrono::seconds(10));
  }
  EXPECT_NO_THROW((void)batch(samples, {0, 1}));
  touch(dir_ / "text", std::chrono::seconds(10));
  EXPECT_NO_THROW((void)batch(samples, {2}));
  // The fingerprint is taken once for each change.
  EXPECT_FALSE(samples.source().files_of(2).front()->change());
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_THAT(warnings[0], HasSubstr((dir_ / "text").string()));
}

TEST_F(SamplesTest, AFileWithOtherContentsIsAnErrorThatNamesItEachTime) {
  const Samples samples = open_text("0123456789");
  EXPECT_NO_THROW((void)batch(samples, {0}));
  write_file(dir_ / "text", "0123456780");
  touch(dir_ / "text", std::chrono::seconds(10));
  for (int i = 0; i < 2; ++i) {
    const Error error = error_of_call([&] { (void)batch(samples, {0}); });
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.message(), HasSubstr((dir_ / "text").string()));
  }
}

at::Tensor tokens() { return longs({1, 2, 3, 4, 5, 6, 7, 8}, {2, 4}); }
at::Tensor next_tokens() { return longs({2, 3, 4, -100, 6, 7, 8, -100}, {2, 4}); }
at::Tensor some_tokens() { return longs({-100, -100, 3, 4, -100, 6, 7, -100}, {2, 4}); }

TEST_F(SamplesTest, LabelsThatAreTheTokensThemselvesAreRefusedForCrossEntropy) {
  constexpr auto kLabels = Labels::kNextTokens;
  for (const at::Tensor& labels : {tokens(), some_tokens()}) {
    EXPECT_THAT(refusal({{"input_ids", tokens()}, {"labels", labels}}, "cross_entropy", kLabels),
                HasSubstr("'labels' are the tokens of 'input_ids' themselves"));
  }
  for (const at::Tensor& labels :
       {next_tokens(), at::full({2, 4}, -100), tokens().narrow(1, 0, 1), tokens() + 1}) {
    EXPECT_EQ(refusal({{"input_ids", tokens()}, {"labels", labels}}, "cross_entropy", kLabels), "no error");
  }
  // A model with an encoder may learn to copy the encoder's tokens.
  EXPECT_EQ(refusal({{"input_ids", tokens()}, {"decoder_input_ids", tokens() + 9}, {"labels", tokens()}},
                    "cross_entropy", kLabels),
            "no error");
  EXPECT_THAT(refusal({{"input_ids", tokens() + 9}, {"decoder_input_ids", tokens()}, {"labels", tokens()}},
                      "cross_entropy", kLabels),
              HasSubstr("'decoder_input_ids' themselves"));
}

TEST_F(SamplesTest, LabelsThatAreTheNextTokensAreRefusedForAModelThatShiftsThem) {
  EXPECT_THAT(refusal({{"input_ids", tokens()}, {"labels", next_tokens()}}, "model", Labels::kInputs),
              HasSubstr("'labels' are the next tokens of 'input_ids'"));
  for (const at::Tensor& labels : {tokens(), some_tokens()})
    EXPECT_EQ(refusal({{"input_ids", tokens()}, {"labels", labels}}, "model", Labels::kInputs), "no error");
  // Nothing is known of a model that computes its loss itself and says nothing of labels.
  for (const at::Tensor& labels : {tokens(), next_tokens()})
    EXPECT_EQ(refusal({{"input_ids", tokens()}, {"labels", labels}}, "model", Labels::kNextTokens),
              "no error");
}

TEST_F(SamplesTest, LabelsThatAreMadeOfTokensHaveTheirMeaningAlready) {
  const Samples samples = open_text("aaaaaaaaaa");
  EXPECT_NO_THROW(samples.require_meaning_of_labels(Labels::kNextTokens));
  EXPECT_NO_THROW(samples.require_meaning_of_labels(Labels::kInputs));
}

TEST_F(SamplesTest, TheFieldsOfAnEvaluationHaveTheDtypesOfTheTraining) {
  config::ModelConfig model;
  model.inputs = {"x"};
  const Samples train = open({{"x", at::zeros({2, 3})}, {"labels", at::zeros({2}, at::kLong)}}, model);
  const Tensors half = {{"x", at::zeros({4, 1}, at::kHalf)}, {"labels", at::zeros({4}, at::kLong)}};
  const Samples eval = open(half, model, "eval.safetensors");
  EXPECT_NO_THROW(train.require_dtypes_of(train));
  const Error error = error_of_call([&] { eval.require_dtypes_of(train); });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_THAT(error.message(), HasSubstr("'x' is float16"));
  EXPECT_THAT(error.message(), HasSubstr("float32"));
}

}  // namespace
}  // namespace accel::train
