#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/api/module.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "train/c10d/group.hpp"
#include "train/graph/run/module_attention.hpp"

namespace accel::train {

/// Sequence parallelism of a model, as DeepSpeed-Ulysses has it: the ranks of a group run forward and
/// backward for the same samples, each for its part of their sequences. Only attention needs the other parts.
/// Around it an all-to-all gives each rank a part of the heads and the whole sequences, and another one takes
/// that back.
///
/// Masks are computed by the model's own code from the whole inputs, so that they are those of a rank that
/// has all of them.
class SequenceParallel {
 public:
  /// Changes the code of `root`. `inputs` are the names of forward's inputs, for errors. `ranks` must outlive
  /// this object. A model that does not use position_ids is an Error of kind kUsage. That tokens see each
  /// other in attention alone is for ShardedModel::compare_parts() to find. Construct it before the first
  /// run, and before methods are copied or rewritten.
  SequenceParallel(const torch::jit::Module& root, std::vector<std::string> inputs, Group& ranks);
  SequenceParallel(const SequenceParallel&) = delete;
  SequenceParallel& operator=(const SequenceParallel&) = delete;
  ~SequenceParallel();

  /// Returns this rank's part of the inputs [batch, length, ...] of a forward, and computes the masks for its
  /// attention, until the next call.
  [[nodiscard]] std::vector<c10::IValue> enter(const std::vector<c10::IValue>& inputs);
  /// This rank's part of a tensor [batch, length, ...], which is [batch, length / ranks, ...]. `name` is for
  /// errors. Another shape, or a length that is not a multiple of the ranks, is an Error of kind kUsage.
  [[nodiscard]] at::Tensor own_part(const at::Tensor& whole, std::string_view name) const;
  /// The name of an input of forward.
  [[nodiscard]] const std::string& input(std::size_t number) const { return inputs_.at(number); }
  /// The number of parts.
  [[nodiscard]] int size() const { return ranks_.size(); }
  /// This rank's part.
  [[nodiscard]] int rank() const { return ranks_.rank(); }

  /// What attentions get in a forward for the tokens of this rank's part, each as the module's path and a
  /// query, key or value.
  struct Trial {
    bool is_whole = false;  ///< Whether each rank computes the whole sequences.
    std::vector<std::pair<std::string, at::Tensor>> seen;
  };
  /// Makes the next forwards be of `trial`, until it is null.
  void set_trial(Trial* trial) { trial_ = trial; }
  /// What find_sequence_mixing() finds in the model.
  [[nodiscard]] const std::optional<std::string>& mixing() const { return mixing_; }
  /// What has_choices() says of the model.
  [[nodiscard]] bool has_choices() const { return has_choices_; }

 private:
  class Attention;

  std::vector<std::string> inputs_;
  Group& ranks_;
  c10::intrusive_ptr<c10::ivalue::Object> root_;
  std::optional<std::string> mixing_;
  bool has_choices_ = false;
  Trial* trial_ = nullptr;
  std::int64_t length_ = 0;  ///< The length of the sequences of the last enter().
  std::unique_ptr<torch::jit::GraphFunction> make_masks_;  ///< Null if no attention has a mask.
  std::vector<at::Tensor> masks_;  ///< Those of the last enter(); an undefined one is none.
  /// The masks as numbers, as attention of a dtype takes them.
  std::map<std::pair<std::size_t, at::ScalarType>, at::Tensor> cast_masks_;
  std::optional<AttentionRegistration> registration_;
};

}  // namespace accel::train
