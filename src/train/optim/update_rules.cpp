#include "train/optim/update_rules.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string_view>

#include "train/optim/adafactor.hpp"
#include "train/optim/muon.hpp"

namespace accel::train {
namespace {

using ckpt::pickle::None;
using ckpt::pickle::Tuple;
using ckpt::pickle::Value;
using Entries = std::vector<std::pair<const char*, Value>>;

Value betas_of(const config::OptimizerOptions& options) {
  return Tuple{{(*options.betas)[0], (*options.betas)[1]}};
}

Entries adam_group(const OptimizerGroup& group) {
  return {{"betas", betas_of(group.options)},
          {"eps", *group.options.eps},
          {"weight_decay", *group.options.weight_decay},
          {"amsgrad", *group.options.amsgrad},
          {"maximize", false},
          {"foreach", None{}},
          {"capturable", false},
          {"differentiable", false},
          {"fused", None{}},
          {"decoupled_weight_decay", group.type == "adamw"}};
}

Entries sgd_group(const OptimizerGroup& group) {
  return {{"momentum", *group.options.momentum},
          {"dampening", *group.options.dampening},
          {"weight_decay", *group.options.weight_decay},
          {"nesterov", *group.options.nesterov},
          {"maximize", false},
          {"foreach", None{}},
          {"differentiable", false},
          {"fused", None{}}};
}

Entries adagrad_group(const OptimizerGroup& group) {
  return {{"lr_decay", *group.options.lr_decay},
          {"eps", *group.options.eps},
          {"weight_decay", *group.options.weight_decay},
          {"initial_accumulator_value", *group.options.initial_accumulator_value},
          {"foreach", None{}},
          {"maximize", false},
          {"differentiable", false},
          {"fused", None{}}};
}

Entries rmsprop_group(const OptimizerGroup& group) {
  return {{"momentum", *group.options.momentum},
          {"alpha", *group.options.alpha},
          {"eps", *group.options.eps},
          {"centered", *group.options.centered},
          {"weight_decay", *group.options.weight_decay},
          {"capturable", false},
          {"foreach", None{}},
          {"maximize", false},
          {"differentiable", false}};
}

Entries lion_group(const OptimizerGroup& group) {
  return {{"betas", betas_of(group.options)}, {"weight_decay", *group.options.weight_decay}};
}

// The entries of torchao's class.
Entries adamw8bit_group(const OptimizerGroup& group) {
  return {{"betas", betas_of(group.options)},
          {"eps", *group.options.eps},
          {"weight_decay", *group.options.weight_decay},
          {"amsgrad", false}};
}

// torch's eps is a pair.
Entries adafactor_group(const OptimizerGroup& group) {
  return {{"beta2_decay", *group.options.beta2_decay},
          {"eps", Tuple{{*group.options.eps, *group.options.eps2}}},
          {"d", *group.options.d},
          {"weight_decay", *group.options.weight_decay},
          {"foreach", None{}},
          {"maximize", false}};
}

/// A type of optimizer. What it stores for a parameter is in plan/layout/optimizer_plan.
struct Row {
  std::string_view type;
  UpdateRule update;
  Entries (*param_group)(const OptimizerGroup& group);
  std::unique_ptr<CollectiveRule> (*collective)(const OptimizerPlan& plan,
                                                std::vector<OptimizerState>& states, int shard,
                                                const MeshGroups* groups) = nullptr;
};

template <class Rule>
std::unique_ptr<CollectiveRule> make(const OptimizerPlan& plan, std::vector<OptimizerState>& states,
                                     int shard, const MeshGroups* groups) {
  return std::make_unique<Rule>(plan, states, shard, groups);
}

constexpr std::array kRows = {
    Row{"adamw", update_adam, adam_group},
    Row{"adam", update_adam, adam_group},
    Row{"sgd", update_sgd, sgd_group},
    Row{"adagrad", update_adagrad, adagrad_group},
    Row{"rmsprop", update_rmsprop, rmsprop_group},
    Row{"lion", update_lion, lion_group},
    Row{"muon", nullptr, muon_param_group, make<Muon>},
    Row{"adamw8bit", update_adamw8bit, adamw8bit_group},
    Row{"adafactor", nullptr, adafactor_group, make<Adafactor>},
};

const Row& row_of(const OptimizerGroup& group) {
  for (const Row& row : kRows) {
    if (row.type == group.type) return row;
  }
  throw std::logic_error("an optimizer without a rule");
}

}  // namespace

UpdateRule update_rule(const OptimizerGroup& group) { return row_of(group).update; }

std::vector<std::unique_ptr<CollectiveRule>> collective_rules(const OptimizerPlan& plan,
                                                              std::vector<OptimizerState>& states, int shard,
                                                              const MeshGroups* groups) {
  std::vector<std::unique_ptr<CollectiveRule>> rules;
  for (const Row& row : kRows) {
    const bool is_used = std::any_of(states.begin(), states.end(), [&](const OptimizerState& state) {
      return plan.groups()[state.range.group].type == row.type;
    });
    if (is_used && row.collective != nullptr) rules.push_back(row.collective(plan, states, shard, groups));
  }
  return rules;
}

Entries param_group(const OptimizerGroup& group) { return row_of(group).param_group(group); }

}  // namespace accel::train
