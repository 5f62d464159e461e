#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "base/text.hpp"
#include "cli/launch/starter.hpp"

namespace accel::cli {
namespace {

/// Whether YAML reads the text as the string that it is, without quotes.
bool is_plain(std::string_view text) {
  constexpr std::array<std::string_view, 11> kOtherTypes = {"true", "false", "yes",  "no",   "on",  "off",
                                                            "null", "nan",   "none", ".nan", ".inf"};
  const auto is_word = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '/';
  };
  return !text.empty() && (is_word(text.front()) || text.front() == '.') &&
         std::any_of(text.begin(), text.end(), is_word) &&
         std::find(kOtherTypes.begin(), kOtherTypes.end(), lower_case(text)) == kOtherTypes.end() &&
         std::all_of(text.begin(), text.end(), [&](char c) {
           return is_word(c) || (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '*';
         });
}

/// `text` as a YAML scalar of one line. YAML-cpp's emitter writes "true", "1e5" and "1.5" without quotes.
std::string scalar(std::string_view text) {
  if (is_plain(text)) return std::string(text);
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  // YAML has all escapes that fmt writes.
  if (std::any_of(text.begin(), text.end(), is_control)) return fmt::format("{:?}", text);
  std::string quoted = "'";
  for (const char c : text) quoted.append(c == '\'' ? 2 : 1, c);
  return quoted + '\'';
}

std::string grouped(std::int64_t number) {
  std::string digits = std::to_string(number);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

class Text {
 public:
  explicit Text(const Starter& starter)
      : starter_(starter), options_(starter.options), has_own_fields_(starter.data_format->has_own_fields) {}

  std::vector<std::string> lines(const std::optional<MemoryFootprint>& memory) && {
    head(memory);
    processes();
    if (starter_.is_sharded()) sharding();
    add("");
    add("training:");
    model();
    data();
    rest();
    return std::move(lines_);
  }

 private:
  template <class... Values>
  void add(fmt::format_string<Values...> format, Values&&... values) {
    lines_.push_back(fmt::format(format, std::forward<Values>(values)...));
  }

  void head(const std::optional<MemoryFootprint>& memory) {
    add("# A configuration to begin with, made by `accel config`.{}",
        options_.data ? "" : " It needs your data, and then it runs.");
    add("# `accel plan` shows its units, memory and traffic, and `accel launch` trains. Paths are relative");
    add("# to the current directory.");
    add("#");
    add("# The model is a {} with {} parameters, {}{}.", starter_.class_name, grouped(starter_.elements),
        format_bytes(starter_.bytes),
        starter_.trainable == starter_.elements
            ? ""
            : fmt::format(", of which {} are trained", grouped(starter_.trainable)));
    if (!memory) return;
    add("# {} needs {}; activations and libtorch come on top.",
        options_.processes == 1 ? "The rank" : fmt::format("Each of {} ranks", options_.processes),
        format_bytes(memory->total_bytes));
    add("# That includes {} of parameters, {} of optimizer state, {} of gradients and {} of gathered",
        format_bytes(memory->shard_bytes), format_bytes(memory->optimizer_bytes),
        format_bytes(memory->gradient_bytes), format_bytes(memory->unsharded_bytes));
    add("# units.");
  }

  void processes() {
    distribution();
    add("use_cpu: {}", options_.use_cpu);
    add("num_processes: {}          # ranks, one for each GPU or part of a CPU", options_.processes);
    if (starter_.dtype.empty()) {
      add("mixed_precision: 'no'     # bf16 or fp16 compute in 16 bits; weights stay float32");
      return;
    }
    add("# The notes of the model say that its graph computes in {}.", starter_.dtype);
    add("mixed_precision: {}", !starter_.computes_in_16_bits() ? "'no'"
                               : starter_.dtype == "bfloat16"  ? "bf16"
                                                               : "fp16");
  }

  void distribution() {
    if (starter_.is_sharded()) return add("distributed_type: FSDP");
    add("");
    add("# A model of at most {} parameters is not sharded: each rank has a copy of it, and the",
        grouped(kMostCopiedElements));
    add("# ranks exchange gradients alone. distributed_type: FSDP and a section fsdp_config shard it.");
    if (options_.use_cpu || options_.sees_gpus) {
      add("distributed_type: {}", options_.use_cpu ? "MULTI_CPU" : "MULTI_GPU");
    } else {
      add("# distributed_type: MULTI_GPU   # no GPU is visible here; without this key a run takes what there "
          "is");
    }
  }

  void sharding() {
    add("");
    add("fsdp_config:");
    add("  fsdp_version: 2");
    add("  fsdp_reshard_after_forward: true");
    if (starter_.layer_classes.empty()) {
      add("  # {}, so all of it is one unit.",
          starter_.classes_are_noted ? "The notes of the model say that it has no layers to become units"
                                     : "No class of layers was found: nothing in the model repeats");
      add("  fsdp_auto_wrap_policy: NO_WRAP");
    } else {
      add("  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP");
      if (starter_.classes_are_noted) {
        add("  # The notes of the model{} name the classes of its layers, which become units.",
            starter_.is_exported ? ", or the calls in its program," : "");
      } else {
        add("  # This is a guess from what repeats in the model. The layers should become units; each unit");
        add("  # is sharded and gathered on its own.");
      }
      add("  fsdp_transformer_layer_cls_to_wrap: {}",
          scalar(fmt::format("{}", fmt::join(starter_.layer_classes, ","))));
    }
    add("  fsdp_state_dict_type: SHARDED_STATE_DICT");
    add("  fsdp_activation_checkpointing: false   # true takes less memory for activations, and more time");
  }

  void model() {
    add("  model:");
    add("    path: {}", scalar(options_.model));
    if (options_.weights) {
      add("    weights: {}", scalar(*options_.weights));
    } else if (!starter_.has_values) {
      add("    # The file has no weights. Name a directory, a file of safetensors or a checkpoint, or draw");
      add("    # random weights with init.");
      add("    # weights: DIRECTORY");
      add("    # init: {{std: 0.02}}");
    }
    inputs();
    loss();
    add("    output: {}                # which result of forward, if it returns several", starter_.output);
  }

  void inputs() {
    std::vector<std::string> arguments;
    std::vector<std::string> fields;
    for (const StarterInput& input : starter_.inputs) {
      arguments.push_back(input.argument);
      fields.push_back(scalar(input.field));
    }
    add("    # The fields of a batch that forward gets, in the order of its arguments: {}.",
        arguments.empty() ? "none is known" : fmt::format("{}", fmt::join(arguments, ", ")));
    for (const StarterInput& input : starter_.inputs) {
      if (input.field == "input_ids" && input.argument != input.field)
        add("    # This is a guess: '{}' gets the tokens.", input.argument);
      if (input.is_guess)
        add("    # This is a guess: '{}' gets the field '{}'.", input.argument, input.field);
      if (!starter_.has(input) && options_.fields) {
        add("    # The data have no field '{}': they have {}.", input.field, starter_.field_names());
      } else if (!starter_.has(input)) {
        add("    # The data have no field '{}'; export the model so that it does not need it.", input.field);
      }
    }
    if (!starter_.left_out.empty())
      add("    # Arguments with a default are left out: {}.", fmt::join(starter_.left_out, ", "));
    add("    inputs: [{}]", fields.empty() ? "input_ids" : fmt::format("{}", fmt::join(fields, ", ")));
  }

  void loss() {
    if (!starter_.is_own_loss) {
      if (has_own_fields_) {
        add("    # forward returns logits [batch, ..., classes], which are compared with the labels [batch, "
            "...].");
      } else {
        add("    # forward returns logits [batch, length, vocabulary]. The label of a token is the next "
            "token.");
      }
      add("    loss: cross_entropy");
      if (has_own_fields_ && !starter_.has_field(starter_.targets))
        add("    # The data have no field '{}': they have {}.", starter_.targets, starter_.field_names());
      if (starter_.targets_are_guess)
        add("    # This is a guess: the field '{}' holds the labels.", starter_.targets);
      add("    targets: {}", scalar(starter_.targets));
      return;
    }
    if (starter_.loss_is_noted) {
      add("    # The notes of the model say that forward returns the loss.");
    } else {
      add("    # This is a guess: forward takes labels, so it should return the loss. If it returns logits,");
      add("    # write cross_entropy.");
    }
    if (!has_own_fields_ || starter_.shifts_labels)
      add("    # {}", starter_.shifts_labels
                          ? "The model shifts its labels itself: the label of a token is the token itself."
                          : "The label of a token is the next token: the model must not shift them again.");
    add("    loss: model");
  }

  void data() {
    const DataFormat& format = *starter_.data_format;
    add("  data:");
    if (!options_.data) add("    # Write here where your data are: a path, or a pattern such as data/*.txt.");
    add("    # {}: {}", format.name, format.note);
    if (!has_own_fields_ && starter_.vocabulary)
      add("    # The model knows {} tokens, as its embedding says.", grouped(*starter_.vocabulary));
    if (!has_own_fields_ && starter_.positions)
      add("    # A sequence has at most {} tokens, as the table of positions says.",
          grouped(*starter_.positions));
    const std::string length =
        !format.sample.empty() ? "" : fmt::format(", sequence_length: {}", starter_.sequence_length);
    if (format.has_documents && starter_.may_pack()) {
      add("    # Documents share a sample and do not see each other, because position_ids begin anew.");
    } else if (format.has_documents) {
      add("    # Each document is a sample: a model without position_ids would mix those of a pack.");
    }
    const std::string packing =
        !format.has_documents ? "" : fmt::format(", packing: {}", starter_.may_pack() ? "best_fit" : "none");
    add("    train: {{format: {}, path: {}{}{}}}", format.name, scalar(starter_.data_path), length, packing);
    add("    batch_size: 8             # samples for each rank");
  }

  void rest() {
    add("  optimizer: {{type: adamw, lr: 3.0e-4, betas: [0.9, 0.95], weight_decay: 0.1, no_decay: [bias, "
        "norm]}}");
    add("  lr_scheduler: {{type: cosine, warmup_steps: 10, min_lr_ratio: 0.1}}");
    add("  max_steps: 100");
    add("  gradient_accumulation_steps: 1");
    add("  max_grad_norm: 1.0");
    add("  log_every: 10");
    add("  output_dir: {}", scalar("runs/" + options_.name));
    if (starter_.has_adapter) return adapter();
    add("  checkpoint: {{every: 50, total_limit: 2}}   # the same command line goes on from the newest one");
  }

  void adapter() {
    add("  # The notes of the model have the configuration of an adapter of PEFT. Checkpoints are of the "
        "adapter");
    add("  # alone, and PeftModel.from_pretrained(base, DIRECTORY) loads the directory export of "
        "output_dir.");
    add("  checkpoint:");
    add("    every: 50                # the same command line goes on from the newest one");
    add("    total_limit: 2");
    add("    adapter_only: true");
    std::vector<std::string> names;
    for (const std::string& name : starter_.adapter_names) names.push_back(scalar(name));
    if (names != std::vector<std::string>{"lora_"})
      add("    adapter_names: [{}]   # what the names of its parameters contain one of",
          fmt::join(names, ", "));
    add("    export: safetensors");
  }

  const Starter& starter_;
  const StarterOptions& options_;
  const bool has_own_fields_;
  std::vector<std::string> lines_;
};

}  // namespace

std::vector<std::string> text_of(const Starter& starter, const std::optional<MemoryFootprint>& memory) {
  return Text(starter).lines(memory);
}

}  // namespace accel::cli
