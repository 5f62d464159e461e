#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "config_file_fixture.hpp"

namespace accel::config {
namespace {

using ConfigFileTest = testing::ConfigFileTest;
using ::testing::HasSubstr;

TEST_F(ConfigFileTest, SyntheticDataHaveAVocabularyAndNoFile) {
  const std::vector<std::string> synthetic = {"training.data.train.format=synthetic",
                                              "training.data.train.path=null"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), synthetic.begin(), synthetic.end());
    return more;
  };
  EXPECT_EQ(error_of(training(), with({"training.data.train.samples=10"})),
            "run.yaml: 'training.data.train.vocabulary' is missing");
  EXPECT_EQ(error_of(training(), with({"training.data.train.vocabulary=10"})),
            "run.yaml: 'training.data.train.samples' is missing");
  EXPECT_EQ(error_of(training(), {"training.data.train.vocabulary=10"}),
            "--set training.data.train.vocabulary=10: 'training.data.train.vocabulary' means nothing for the "
            "format 'text'");
}

TEST_F(ConfigFileTest, AMixtureIsInPlaceOfAPath) {
  const std::string path = (dir_ / "a.txt").string();
  const std::string all = (dir_ / "*.txt").string();
  const auto mixture_of = [](const std::string& parts) {
    return "training.data.train.mixture={" + parts + "}";
  };
  const std::string no_path = "training.data.train.path=null";
  const std::string mixed = mixture_of(path + ": 3, '" + all + "': 0.5");
  const DataSource train = load(training(), {no_path, mixed}).config.training->data.train;
  EXPECT_EQ(train.path, "");
  ASSERT_EQ(train.mixture.size(), 2u);
  EXPECT_EQ(train.mixture[1].path, all);
  EXPECT_EQ(train.mixture[1].weight, 0.5);
  EXPECT_THAT(error_of(training(), {mixed}), HasSubstr("are both set"));
  for (const char* weight : {"0", "-1", "inf", "nan", "1x", "''"}) {
    EXPECT_THAT(error_of(training(), {no_path, mixture_of(path + ": " + weight)}),
                HasSubstr("'training.data.train.mixture' must give 'a.txt' a weight above 0, found"))
        << weight;
  }
  EXPECT_THAT(error_of(training(), {no_path, mixture_of("no.txt: 1")}),
              HasSubstr("'training.data.train.mixture': nothing matches 'no.txt'"));
}

TEST_F(ConfigFileTest, APaddedLengthIsForDocuments) {
  EXPECT_THAT(error_of(training(), {"training.data.train.pad_to_multiple_of=8"}),
              HasSubstr("'training.data.train.pad_to_multiple_of' is for 'format: documents', not 'text'"));
}

// The eight bytes make seven samples of one byte, with its label. A step takes two of each of the two ranks.
TEST_F(ConfigFileTest, EpochsSetTheLastStep) {
  const auto last_step = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"training.data.train.sequence_length=1", "training.data.batch_size=2"});
    return load("use_cpu: true\nnum_processes: 2\n" + training(), std::move(more)).config.training->max_steps;
  };
  EXPECT_EQ(last_step({"training.epochs=3", "training.max_steps=null"}), 3);
  EXPECT_EQ(last_step({"training.epochs=3"}), 3);
  EXPECT_EQ(last_step({"training.epochs=3", "training.max_steps=2"}), 2);
  EXPECT_EQ(last_step({"training.epochs=3", "training.data.drop_last=false"}), 6);
  EXPECT_EQ(last_step({"training.epochs=20", "training.data.drop_last=false",
                       "training.gradient_accumulation_steps=2"}),
            10)
      << "training.max_steps is 10";
  EXPECT_THAT(error_of(training(), {"training.epochs=3"}), HasSubstr("--set training.epochs=3: "));
  EXPECT_THAT(error_of(training(), {"training.epochs=3"}), HasSubstr("8 tokens make 0 samples of 8"));
  only_plans_ = true;
  EXPECT_NO_THROW((void)load(training(), {"training.epochs=3", "training.max_steps=null"}));
}

}  // namespace
}  // namespace accel::config
