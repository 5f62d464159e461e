#pragma once

#include <array>
#include <string_view>

#include "core/config/keys/keys.hpp"
#include "data/formats/data_formats.hpp"

namespace accel::config {

// The keys of training.data, a part of the table of training_keys.cpp.

template <auto... Members>
constexpr Member data = member<&Config::training, &TrainingConfig::data, Members...>;

constexpr Idle kNoEvaluation = {"there is no evaluation without 'training.eval_every'",
                                [](const Config& config) { return config.training->eval_every == 0; }};

constexpr auto kFollowsEvaluations = [](const Config& config) {
  return config.training->follows_evaluations();
};

/// The keys of a source of data. What the samples are is compared by their contents.
template <auto... Source>
constexpr auto source_keys(std::string_view format, std::string_view path, std::string_view length,
                           std::string_view dtype, std::string_view packing, std::string_view multiple,
                           std::string_view vocabulary, std::string_view samples, Idle idle,
                           bool (*pads)(const Config&)) {
  return std::to_array<Key>({
      {.path = format,
       .help = kFormatHelp,
       .member = data<Source..., &DataSource::format>,
       .choices = kFormatNames,
       .traits = kNoNumbers | kRequired},
      {.path = path,
       .help = "A file, or a glob whose matches are taken in sorted order. Required, but not for synthetic",
       .member = data<Source..., &DataSource::path>,
       .idle = idle,
       .standard = "none",
       .traits = kNoNumbers | kComputed},
      {.path = length,
       .type = Type::kInt,
       .help = "Number of tokens of a sample. Required, but not for tensors",
       .member = data<Source..., &DataSource::sequence_length>,
       .min = 1,
       .max = 1e9,
       .standard = "none",
       .traits = kNoNumbers | kComputed},
      {.path = dtype,
       .help = "Dtype of files of tokens that have no header",
       .member = data<Source..., &DataSource::dtype>,
       .choices = "uint16|uint32",
       .standard = "that of the header",
       .traits = kNoNumbers | kComputed},
      {.path = packing,
       .help =
           "How documents become samples: best_fit puts whole ones together, none fills each up with padding",
       .member = data<Source..., &DataSource::packing>,
       .choices = "none|best_fit",
       .standard = "none",
       .traits = kNoNumbers | kComputed},
      {.path = multiple,
       .type = Type::kInt,
       .help = "Documents are filled up to the longest one of the micro-batch, rounded up to a multiple of "
               "this, in place of sequence_length",
       .member = data<Source..., &DataSource::pad_to_multiple_of>,
       .min = 1,
       .standard = "none",
       .numbers_if = pads,
       .traits = kNoNumbers | kComputed},
      {.path = vocabulary,
       .type = Type::kInt,
       .help = "How many different tokens there are. Required for synthetic, and for nothing else",
       .member = data<Source..., &DataSource::vocabulary>,
       .min = 1,
       .max = 4'294'967'296,
       .standard = "none",
       .traits = kNoNumbers | kComputed},
      {.path = samples,
       .type = Type::kInt,
       .help = "Number of samples. Required for synthetic, and for nothing else",
       .member = data<Source..., &DataSource::samples>,
       .min = 1,
       .max = 1e15,
       .standard = "none",
       .traits = kNoNumbers | kComputed},
  });
}

constexpr auto kTrainData = source_keys<&DataConfig::train>(
    "training.data.train.format", "training.data.train.path", "training.data.train.sequence_length",
    "training.data.train.dtype", "training.data.train.packing", "training.data.train.pad_to_multiple_of",
    "training.data.train.vocabulary", "training.data.train.samples", {},
    [](const Config& /*config*/) { return true; });
constexpr auto kEvalData = source_keys<&DataConfig::eval>(
    "training.data.eval.format", "training.data.eval.path", "training.data.eval.sequence_length",
    "training.data.eval.dtype", "training.data.eval.packing", "training.data.eval.pad_to_multiple_of",
    "training.data.eval.vocabulary", "training.data.eval.samples", kNoEvaluation, kFollowsEvaluations);

constexpr auto kDataKeys = std::to_array<Key>({
    {.path = "training.data.train.mixture",
     .help =
         "Instead of path: a map from files or globs to weights. Of the samples of an epoch, each has its "
         "weight's part. No sample is left out, those of small sources come again",
     .member = data<&DataConfig::train, &DataSource::mixture>,
     .traits = kNoNumbers},
    {.path = "training.data.eval_sets",
     .help =
         "Map from names to the paths of further held-out data, of the format and with the other settings "
         "of training.data.eval. Each is evaluated after it, as eval_NAME_loss and so on",
     .member = data<&DataConfig::eval_sets>,
     .idle = kNoEvaluation,
     .traits = kNoNumbers},
    {.path = "training.data.batch_size",
     .help = "Samples of a rank in a micro-batch",
     .member = data<&DataConfig::batch_size>,
     .min = 1,
     .max = 1e9,
     .numbers_if = kFollowsEvaluations,
     .traits = kNoNumbers},
    {.path = "training.data.shuffle",
     .help = "Draws a new order of the samples for each epoch, from training.seed",
     .member = data<&DataConfig::shuffle>},
    {.path = "training.data.drop_last",
     .help =
         "Leaves out samples that fill no batch. With false, samples from the start complete the last batch",
     .member = data<&DataConfig::drop_last>},
    {.path = "training.data.check_labels",
     .help =
         "Refuses labels of tensors that look wrong for the model: those that are the inputs themselves, and "
         "those that the model would shift a second time",
     .member = data<&DataConfig::check_labels>,
     .idle = {"only data of the format 'tensors' bring labels of their own",
              [](const Config& config) {
                return !data_format(config.training->data.train.format).has_own_fields;
              }},
     .traits = kNoNumbers},
    {.path = "training.data.workers",
     .type = Type::kInt,
     .help = "Threads that read data",
     .built = "1",
     .min = 0},
});

}  // namespace accel::config
