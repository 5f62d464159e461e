#include "preflight/data_checks.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "ckpt/tensor/convert_dtype.hpp"
#include "core/config/mesh.hpp"
#include "data/formats/data_formats.hpp"
#include "data/formats/sample_source.hpp"
#include "data/needed_fields.hpp"
#include "preflight/blame.hpp"
#include "preflight/label_meaning.hpp"
#include "preflight/model_inputs.hpp"
#include "preflight/resumed_data.hpp"

namespace accel {
namespace {

/// How many samples are read at most for their labels, spread evenly over the data.
constexpr std::int64_t kMostRead = 4096;

std::string text_of(const ProgramSize& size) {
  if (const auto fixed = size.fixed()) return fmt::format("{} alone", *fixed);
  if (!size.most) return fmt::format("at least {}", size.least);
  return size.least == 0 ? fmt::format("at most {}", *size.most)
                         : fmt::format("{} to {}", size.least, *size.most);
}

bool has(const ProgramSize& size, std::int64_t number) {
  return number >= size.least && number <= size.most.value_or(number);
}

/// One of the two sources of a configuration.
struct Source {
  std::string section;
  const config::DataSource& config;
  std::string path_key;  ///< The key of its path if that is not in the section.
  std::unique_ptr<SampleSource> samples;

  [[nodiscard]] std::string key(const char* name) const { return section + "." + name; }
  /// The key that says what the samples are.
  [[nodiscard]] std::string content_key() const {
    if (!path_key.empty()) return path_key;
    if (!config.mixture.empty()) return key("mixture");
    return key(config.path.empty() ? "format" : "path");
  }
};

class DataChecks {
 public:
  DataChecks(const config::LoadedConfig& loaded, const ModelFacts& facts)
      : loaded_(loaded), training_(*loaded.config.training), facts_(facts) {
    if (training_.data.check_labels)
      blamed_on("training.model.targets", loaded, [&] { require_targets(training_.model); });
    if (facts.signature) dtypes_ = input_dtypes(training_.model, *facts.signature);
  }

  std::optional<TrainingData> check() {
    const int ranks = config::mesh_of(loaded_.config).data_size();
    std::optional<TrainingData> data;
    if (!training_.only_evaluates) data = check_training(ranks);
    for (const auto& [name, source] : training_.data.held_out()) check_evaluation(name, source, ranks);
    return data;
  }

 private:
  void check_evaluation(const std::string& name, const config::DataSource& config, int ranks) const {
    const Source eval = open("training.data.eval", config, name.empty() ? "" : "training.data.eval_sets");
    blamed_on(eval.content_key(), loaded_, [&] {
      if (eval.samples->size() > 0) return;
      const std::string set = name.empty() ? "" : fmt::format("'{}': ", name);
      throw Error(ErrorKind::kUsage, set + eval.samples->size_text());
    });
    if (training_.eval_every == 0 && !training_.only_evaluates) return;
    check_vocabulary(eval);
    check_positions(eval);
    check_inputs(eval, eval.samples->size());
    check_last_batch(eval, ranks);
    check_meaning(eval);
  }

  [[nodiscard]] TrainingData check_training(int ranks) const {
    const Source train = open("training.data.train", training_.data.train);
    const BatchPlan plan = blamed_on("training.data.batch_size", loaded_,
                                     [&] { return plan_epoch(*train.samples, training_.data, ranks); });
    if (facts_.place) {
      blamed_on(train.content_key(), loaded_, [&] {
        require_same_data(*facts_.place, train.samples->size(), train.samples->sequence_length());
      });
    }
    check_vocabulary(train);
    check_positions(train);
    // In order, the steps may end before the data do.
    const auto taken = static_cast<double>(training_.max_steps) *
                       static_cast<double>(training_.gradient_accumulation_steps) *
                       static_cast<double>(training_.data.batch_size * ranks);
    const std::int64_t all = train.samples->size();
    const bool takes_all = training_.data.shuffle || taken >= static_cast<double>(all);
    check_inputs(train, takes_all ? all : static_cast<std::int64_t>(taken));
    check_meaning(train);
    TrainingData data{all, plan.steps_per_epoch(training_.gradient_accumulation_steps), training_.max_steps,
                      plan.epochs_after(training_.max_steps, training_.gradient_accumulation_steps),
                      std::nullopt};
    if (const std::string text = train.samples->left_out(); !text.empty())
      data.warnings.push_back(fmt::format("{}: {}", train.content_key(), text));
    data.mixed = train.samples->mixed();
    for (const MixedSource& source : data.mixed) {
      constexpr std::int64_t kMany = 4;
      if (source.taken / source.samples < kMany) continue;
      data.warnings.push_back(
          fmt::format("{}: each sample of '{}' comes {:.1f} times in an epoch; language models learn little "
                      "from more than four, and a smaller weight of the source takes it less often",
                      train.content_key(), source.path, source.repeats()));
    }
    if (training_.model.uint8_divisor)
      data.divided_fields = divided_fields(*train.samples, training_.model, dtypes_);
    return data;
  }

  Source open(std::string section, const config::DataSource& config, std::string path_key = "") const {
    Source source{std::move(section), config, std::move(path_key), nullptr};
    blamed_on(source.content_key(), loaded_, [&] { source.samples = open_data(config); });
    blamed_on(source.content_key(), loaded_, [&] { (void)needed_fields(*source.samples, training_.model); });
    return source;
  }

  void check_meaning(const Source& source) const {
    if (!facts_.labels || !training_.data.check_labels) return;
    blamed_on(source.content_key(), loaded_, [&] {
      require_meaning_of_labels(*source.samples, source.config.format, training_.model, *facts_.labels);
    });
  }

  /// Bytes are no tokens of a tokenizer.
  void check_vocabulary(const Source& source) const {
    const bool takes_tokens = std::find(training_.model.inputs.begin(), training_.model.inputs.end(),
                                        kTokensField) != training_.model.inputs.end();
    if (!facts_.tokens || !takes_tokens) return;
    blamed_on(source.key("format"), loaded_,
              [&] { require_vocabulary(data_format(source.config.format), *facts_.tokens); });
  }

  void check_positions(const Source& source) const {
    const std::int64_t length = source.samples->sequence_length();
    if (!facts_.positions && length > facts_.max_positions.value_or(length)) {
      log::warn(fmt::format("{}: a sequence has {} tokens, and the model was made for {} positions",
                            source.key("sequence_length"), length, *facts_.max_positions));
    }
    blamed_on(source.key("sequence_length"), loaded_, [&] {
      if (!facts_.positions || source.samples->sequence_length() <= *facts_.positions) return;
      throw Error(ErrorKind::kUsage,
                  fmt::format("a sequence has {} tokens, but the model's table of positions has {} rows",
                              source.samples->sequence_length(), *facts_.positions))
          .hint(
              "use a shorter sequence, or export the model with more positions; if the table is looked up in "
              "another way, launch.preflight: false starts the run");
    });
  }

  /// The field of the data with that name, which needed_fields() has found.
  [[nodiscard]] static std::size_t number_of(const Source& source, const std::string& name) {
    const std::vector<SampleField>& fields = source.samples->fields();
    const auto found = std::find_if(fields.begin(), fields.end(),
                                    [&](const SampleField& field) { return field.name == name; });
    return static_cast<std::size_t>(found - fields.begin());
  }

  /// Of the first `count` samples, which are those that a run takes.
  void check_inputs(const Source& source, std::int64_t count) const {
    if (!facts_.signature) return;
    const std::vector<ProgramValue>& inputs = facts_.signature->inputs;
    for (std::size_t i = 0; i < std::min(inputs.size(), training_.model.inputs.size()); ++i) {
      const std::size_t field = number_of(source, training_.model.inputs[i]);
      check_input(source, source.samples->fields()[field], inputs[i]);
      check_padding(source, inputs[i]);
    }
    if (training_.model.has_classes()) check_labels(source, count);
  }

  void check_input(const Source& source, const SampleField& field, const ProgramValue& input) const {
    const auto fail = [&](const std::string& message, const std::string& hint) {
      throw Error(ErrorKind::kUsage, message).hint(hint);
    };
    const bool is_uint8 = field.dtype == ckpt::DType::kUInt8;
    blamed_on(source.content_key(), loaded_, [&] {
      // An integer becomes a float in most operators, but not in a convolution or a product.
      const bool is_float = ckpt::is_floating(field.dtype) || is_divided(field, training_.model, dtypes_);
      if (!input.dtype || ckpt::is_floating(*input.dtype) == is_float || !(is_float || input.is_strict))
        return;
      fail(fmt::format("'{}' is of {}, and the model was exported for an input '{}' of {}", field.name,
                       ckpt::torch_name(field.dtype), input.name, ckpt::torch_name(*input.dtype)),
           !ckpt::is_floating(*input.dtype)
               ? "write the field as int64, or export the model with an input of that dtype; if the program "
                 "takes floats, too, launch.preflight: false starts the run"
           : is_uint8 ? "set training.model.uint8_divisor, which is 255 for pictures from 0 to 1, or export "
                        "the model with an input of that dtype"
                      : "write the field as float32, or export the model with an input of that dtype");
    });
    blamed_on(source.content_key(), loaded_, [&] {
      if (input.shape.empty() || field.shape.size() + 1 == input.shape.size()) return;
      fail(fmt::format("'{}' has {} dimensions with that of the samples, and the model was exported for {}",
                       field.name, field.shape.size() + 1, input.shape.size()),
           fmt::format("a sample is [{}]", fmt::join(field.shape, ", ")));
    });
    blamed_on("training.data.batch_size", loaded_, [&] {
      if (input.shape.empty() || has(input.shape.front(), training_.data.batch_size)) return;
      fail(fmt::format("a batch has {} samples, and the model was exported for {}", training_.data.batch_size,
                       text_of(input.shape.front())),
           "set that batch size, or export the model with a dynamic first dimension");
    });
    const bool has_length = source.samples->sequence_length() > 0;
    blamed_on(has_length ? source.key("sequence_length") : source.content_key(), loaded_, [&] {
      for (std::size_t d = 0; d < field.shape.size() && d + 1 < input.shape.size(); ++d) {
        if (has(input.shape[d + 1], field.shape[d])) continue;
        fail(fmt::format("'{}' has {} in dimension {}, and the model was exported for {}", field.name,
                         field.shape[d], d + 1, text_of(input.shape[d + 1])),
             "use data of that size, or export the model with a dynamic dimension");
      }
    });
  }

  /// Micro-batches of documents that are filled up to the longest one have many lengths.
  void check_padding(const Source& source, const ProgramValue& input) const {
    if (source.config.pad_to_multiple_of == 0 || input.shape.size() < 2) return;
    blamed_on(source.key("pad_to_multiple_of"), loaded_, [&] {
      const auto length = input.shape[1].fixed();
      if (!length) return;
      throw Error(ErrorKind::kUsage,
                  fmt::format("the model was exported for sequences of {} tokens alone", *length))
          .hint("leave pad_to_multiple_of out, or export the model with a dynamic second dimension");
    });
  }

  /// The batches of an evaluation are of the same size except the last, and a rank that has no sample left
  /// takes one.
  void check_last_batch(const Source& eval, int ranks) const {
    if (!facts_.signature || facts_.signature->inputs.empty()) return;
    const std::vector<ProgramSize>& shape = facts_.signature->inputs.front().shape;
    const std::int64_t batch = training_.data.batch_size;
    if (batch == 1 || shape.empty() || !shape.front().fixed()) return;
    if (eval.samples->size() % (batch * ranks) == 0) return;
    blamed_on(eval.content_key(), loaded_, [&] {
      throw Error(
          ErrorKind::kUsage,
          fmt::format("{} are no multiple of {}, the samples that all ranks evaluate at once, and the "
                      "model was exported for a batch of {} alone",
                      eval.samples->size_text(), batch * ranks, batch))
          .hint("leave some samples out, or export the model with a dynamic first dimension");
    });
  }

  /// How many classes the output that is compared with the labels has, if the program says it.
  [[nodiscard]] std::optional<std::int64_t> classes() const {
    const std::vector<ProgramValue>& outputs = facts_.signature->outputs;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const bool is_meant =
          outputs[i].name == training_.model.output || std::to_string(i) == training_.model.output;
      if (is_meant && !outputs[i].shape.empty()) return outputs[i].shape.back().fixed();
    }
    return std::nullopt;
  }

  void check_labels(const Source& source, std::int64_t taken) const {
    const auto known = classes();
    const std::size_t number = number_of(source, training_.model.targets);
    const SampleField& field = source.samples->fields()[number];
    if (!known || ckpt::is_floating(field.dtype)) return;
    std::vector<std::byte> bytes(field.bytes);
    std::vector<std::span<std::byte>> out(source.samples->fields().size());
    out[number] = bytes;
    const std::int64_t count = std::min(taken, kMostRead);
    const DataFormat& format = data_format(source.config.format);
    blamed_on(source.content_key(), loaded_, [&] {
      // Where every token is a label, the source itself says which one of which file is wrong.
      if (!format.has_own_fields && !format.has_documents && training_.model.targets == kLabelsField)
        source.samples->set_vocabularies({{kTokensField, *known}});
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t sample = taken / count * i;
        source.samples->read(sample, Labels::kNextTokens, out);
        for (const std::int64_t label : integers_of(bytes, field.dtype)) {
          if (label == kIgnored || label == training_.model.ignore_index || (label >= 0 && label < *known))
            continue;
          throw Error(ErrorKind::kUsage,
                      fmt::format("{}: label {} in '{}', but the model gives {} classes",
                                  source.samples->position(sample), label, field.name, *known))
              .hint(fmt::format("labels are from 0 to {}, or {} where none counts", *known - 1,
                                training_.model.ignore_index));
        }
      }
    });
  }

  const config::LoadedConfig& loaded_;
  const config::TrainingConfig& training_;
  const ModelFacts& facts_;
  InputDtypes dtypes_;
};

}  // namespace

std::optional<TrainingData> check_data(const config::LoadedConfig& loaded, const ModelFacts& facts) {
  return DataChecks(loaded, facts).check();
}

}  // namespace accel
