#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/name_pattern.hpp"
#include "core/config/config.hpp"
#include "plan/layout/flat_layout.hpp"
#include "plan/layout/state_tensor.hpp"
#include "structure/structure.hpp"

namespace accel {

/// Parameters that one optimizer trains with the same options, and for which it stores the same tensors.
struct OptimizerGroup {
  std::string pattern;  ///< That of the section of training.optimizer.groups; empty for the other parameters.
  std::string type;     ///< A name of config::find_optimizer().
  config::OptimizerOptions options;  ///< All that the optimizer has; weight_decay is that of this group.
  double lr = 0;                     ///< The learning rate that the schedule multiplies.
  std::vector<StateTensor> tensors;
  bool counts_steps = false;  ///< torch's state has the parameter's number of steps.
  std::size_t optimizer = 0;  ///< Which of the run's optimizers it belongs to, one for each type.
  /// The first of the groups that are together one of torch's param_groups: those with the same options.
  std::size_t param_group = 0;
};

/// What the optimizers of a run do with each parameter, and what they store for it. Layouts, memory and disk
/// space, the state in checkpoints and their reading follow from it.
class OptimizerPlan {
 public:
  /// AdamW with torch's defaults.
  OptimizerPlan() : OptimizerPlan(config::OptimizerConfig{}) {}
  /// Throws Error (kUsage) for a type or a pattern that does not exist.
  explicit OptimizerPlan(const config::OptimizerConfig& config);

  /// The groups, those of one of torch's param_groups in its order. A group may have no parameter.
  [[nodiscard]] const std::vector<OptimizerGroup>& groups() const { return groups_; }
  /// The index in groups() of a parameter. It has several names if it is tied.
  [[nodiscard]] std::size_t group_of(const std::vector<std::string>& names,
                                     const std::vector<std::int64_t>& shape) const;
  /// Whether the configuration freezes the parameter.
  [[nodiscard]] bool freezes(const std::vector<std::string>& names) const;
  /// Throws Error (kUsage) for a section of training.optimizer.groups that has none of the parameters.
  void require_used(const std::vector<ParameterInfo>& parameters) const;
  /// The number of optimizers, each of which has a part of its own in a checkpoint. It is the number of types
  /// of groups(), even if one has no parameter.
  [[nodiscard]] std::size_t optimizers() const { return optimizers_; }

 private:
  /// The groups of one section of training.optimizer.groups, or of the parameters in none.
  struct Section {
    NamePattern pattern;
    bool frozen = false;
    bool keeps_decay = false;  ///< The section sets the weight decay, also of parameters of no_decay.
    bool (*takes)(const std::vector<std::int64_t>& shape) = nullptr;  ///< Null if it takes every shape.
    std::size_t first = 0;          ///< With weight decay; the next is without.
    std::size_t first_of_rest = 0;  ///< The same for parameters of a shape that it does not take.
  };

  /// Adds a group with weight decay and one without, and returns the index of the first.
  std::size_t add_pair(const std::string& pattern, const config::OptimizerKind& kind,
                       const config::OptimizerOptions& options, double lr, bool is_rest = false);
  void add_section(const config::OptimizerConfig& config, const config::ParameterGroup& group);
  [[nodiscard]] const Section& section_of(const std::vector<std::string>& names) const;

  std::vector<std::string> no_decay_;
  std::vector<Section> sections_;  ///< The last matches every name.
  std::vector<OptimizerGroup> groups_;
  std::size_t optimizers_ = 0;
};

/// The model with the parameters that training.optimizer.groups freezes as such. Throws Error (kUsage) for a
/// section of the groups that has no parameter.
ModelStructure with_frozen(ModelStructure model, const OptimizerPlan& plan);

/// The most bytes that the state for one shard of a buffer takes, with the padding. Shards differ where
/// groups store differently much.
std::uint64_t state_bytes(const FlatLayout& layout, const OptimizerPlan& plan);

}  // namespace accel
