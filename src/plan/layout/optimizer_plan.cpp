#include "plan/layout/optimizer_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/checked.hpp"
#include "base/error.hpp"

namespace accel {
namespace {

/// What an optimizer keeps for a parameter, under torch's names.
struct Stored {
  std::vector<StateTensor> tensors;
  bool counts_steps = false;
};

/// An optimizer that changes or stores parameters of some shapes otherwise than the rest.
struct Split {
  std::string_view type;
  bool (*takes)(const std::vector<std::int64_t>& shape);
  std::string_view type_of_rest;
};

bool is_matrix(const std::vector<std::int64_t>& shape) { return shape.size() == 2; }
bool has_rows(const std::vector<std::int64_t>& shape) { return shape.size() >= 2; }

/// Small parameters keep float32, as they do in bitsandbytes and torchao, and so do those that do not fill
/// their last block, as in torchao.
bool has_codes(const std::vector<std::int64_t>& shape) {
  constexpr std::int64_t kLeast = 4096;
  const std::int64_t numel = checked_numel(shape);
  return numel >= kLeast && numel % kBlockElems == 0;
}

constexpr std::array kSplits = {
    Split{"muon", is_matrix, "adamw"},
    Split{"adafactor", has_rows, "adafactor"},
    Split{"adamw8bit", has_codes, "adamw8bit"},
};

/// `is_rest` says that the parameters are of a shape that the optimizer's Split does not take.
Stored stored_by(std::string_view type, const config::OptimizerOptions& options, bool is_rest) {
  const bool has_momentum = options.momentum.value_or(0) != 0;
  Stored stored;
  if (type == "adamw" || type == "adam") {
    stored = {{{"exp_avg"}, {"exp_avg_sq"}}, true};
    if (*options.amsgrad) stored.tensors.push_back({"max_exp_avg_sq"});
  } else if (type == "sgd") {
    if (has_momentum) stored.tensors = {{"momentum_buffer"}};
  } else if (type == "adagrad") {
    stored = {{{"sum", *options.initial_accumulator_value}}, true};
  } else if (type == "rmsprop") {
    stored = {{{"square_avg"}}, true};
    if (has_momentum) stored.tensors.push_back({"momentum_buffer"});
    if (*options.centered) stored.tensors.push_back({"grad_avg"});
  } else if (type == "lion") {
    stored.tensors = {{"exp_avg"}};
  } else if (type == "muon") {
    stored.tensors = {{"momentum_buffer"}};
  } else if (type == "adamw8bit" && is_rest) {
    stored = {{{"exp_avg"}, {"exp_avg_sq"}}, true};
  } else if (type == "adamw8bit") {
    stored.counts_steps = true;
    for (const char* name : {"exp_avg", "exp_avg_sq"}) {
      stored.tensors.push_back({name, 0, StateForm::kCodes, "codes"});
      stored.tensors.push_back({name, 0, StateForm::kScales, "scale"});
    }
  } else if (type == "adafactor") {
    stored.counts_steps = true;
    if (is_rest) {
      stored.tensors = {{"variance"}};
    } else {
      stored.tensors = {{"row_var", 0, StateForm::kRows}, {"col_var", 0, StateForm::kColumns}};
    }
  }
  return stored;
}

const config::OptimizerKind& kind_of(std::string_view type) {
  if (const auto* const kind = config::find_optimizer(type)) return *kind;
  throw Error(ErrorKind::kUsage, fmt::format("the optimizer '{}' is not supported", type));
}

bool any_has(const std::vector<std::string>& names, const std::string& part) {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return name.find(part) != std::string::npos; });
}

}  // namespace

OptimizerPlan::OptimizerPlan(const config::OptimizerConfig& config) : no_decay_(config.no_decay) {
  for (const config::ParameterGroup& group : config.groups) add_section(config, group);
  add_section(config, {});
}

void OptimizerPlan::add_section(const config::OptimizerConfig& config, const config::ParameterGroup& group) {
  Section section{NamePattern(group.match), group.frozen, group.weight_decay.has_value()};
  const bool is_other = !group.optimizer.empty() && group.optimizer != config.type;
  const config::OptimizerKind& kind = kind_of(is_other ? group.optimizer : config.type);
  // The weight decay of training.optimizer holds for another optimizer only if it is set for this one.
  config::OptimizerOptions options =
      config::complete_options(kind, is_other ? config::OptimizerOptions{} : config.options);
  if (group.weight_decay) options.weight_decay = group.weight_decay;
  const double lr = group.lr.value_or(config.lr);
  section.first = add_pair(group.match, kind, options, lr);
  for (const Split& split : kSplits) {
    if (split.type != kind.name) continue;
    section.takes = split.takes;
    section.first_of_rest = add_pair(group.match, kind_of(split.type_of_rest), options, lr, /*is_rest=*/true);
    if (split.type_of_rest != split.type) continue;
    for (const std::size_t i : {0, 1}) groups_[section.first_of_rest + i].param_group = section.first + i;
  }
  sections_.push_back(std::move(section));
}

std::size_t OptimizerPlan::add_pair(const std::string& pattern, const config::OptimizerKind& kind,
                                    const config::OptimizerOptions& options, double lr, bool is_rest) {
  const std::size_t first = groups_.size();
  const auto same = [&](const OptimizerGroup& group) { return group.type == kind.name; };
  const auto found = std::find_if(groups_.begin(), groups_.end(), same);
  const std::size_t optimizer = found == groups_.end() ? optimizers_++ : found->optimizer;
  for (const bool decays : {true, false}) {
    OptimizerGroup group{pattern, std::string(kind.name), config::complete_options(kind, options), lr};
    if (!decays) group.options.weight_decay = 0;
    Stored stored = stored_by(kind.name, group.options, is_rest);
    group.tensors = std::move(stored.tensors);
    group.counts_steps = stored.counts_steps;
    group.optimizer = optimizer;
    group.param_group = groups_.size();
    groups_.push_back(std::move(group));
  }
  return first;
}

const OptimizerPlan::Section& OptimizerPlan::section_of(const std::vector<std::string>& names) const {
  return *std::find_if(sections_.begin(), sections_.end(), [&](const Section& section) {
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& name) { return section.pattern.is_found_in(name); });
  });
}

std::size_t OptimizerPlan::group_of(const std::vector<std::string>& names,
                                    const std::vector<std::int64_t>& shape) const {
  const Section& section = section_of(names);
  const bool decays =
      section.keeps_decay || std::none_of(no_decay_.begin(), no_decay_.end(),
                                          [&](const std::string& part) { return any_has(names, part); });
  const bool is_rest = section.takes != nullptr && !section.takes(shape);
  return (is_rest ? section.first_of_rest : section.first) + (decays ? 0 : 1);
}

bool OptimizerPlan::freezes(const std::vector<std::string>& names) const { return section_of(names).frozen; }

void OptimizerPlan::require_used(const std::vector<ParameterInfo>& parameters) const {
  std::vector<const Section*> used = {&sections_.back()};
  for (const ParameterInfo& parameter : parameters) used.push_back(&section_of(parameter.fqns));
  for (const Section& section : sections_) {
    if (std::find(used.begin(), used.end(), &section) != used.end()) continue;
    throw Error(
        ErrorKind::kUsage,
        fmt::format("'training.optimizer.groups' has the pattern '{}', which is found in the name of no "
                    "parameter that no group before it has",
                    section.pattern.text()))
        .hint("`accel inspect MODEL --tensors` lists the names");
  }
}

ModelStructure with_frozen(ModelStructure model, const OptimizerPlan& plan) {
  plan.require_used(model.parameters);
  for (ParameterInfo& parameter : model.parameters) {
    if (plan.freezes(parameter.fqns)) parameter.requires_grad = false;
  }
  return model;
}

std::uint64_t state_bytes(const FlatLayout& layout, const OptimizerPlan& plan) {
  const std::vector<GroupRange> ranges = group_ranges(layout);
  std::uint64_t most = 0;
  for (int shard = 0; shard < layout.mesh.shards(); ++shard) {
    std::uint64_t bytes = 0;
    for (const GroupRange& range : ranges) {
      for (const StateTensor& tensor : plan.groups()[range.group].tensors) {
        const auto numel = static_cast<std::uint64_t>(numel_on_rank(tensor, layout, range, shard));
        bytes = checked_add(bytes, checked_mul(numel, static_cast<std::uint64_t>(tensor.bytes_each())));
      }
    }
    most = std::max(most, bytes);
  }
  return most;
}

}  // namespace accel
