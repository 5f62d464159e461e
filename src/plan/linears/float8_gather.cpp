#include "plan/linears/float8_gather.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unordered_map>

#include "base/error.hpp"

namespace accel {
namespace {

std::string weight_of(const std::string& module) { return module.empty() ? "weight" : module + ".weight"; }

}  // namespace

std::unordered_set<std::string> float8_modules(const LinearPlan& plan) {
  std::unordered_set<std::string> modules;
  for (const PlannedLinear& linear : plan.linears) {
    if (linear.is_float8()) modules.insert(linear.module);
  }
  return modules;
}

ModelStructure with_float8_gather(ModelStructure model, const LinearPlan& plan, const ModelStructure& apart) {
  std::unordered_map<std::string, const PlannedLinear*>
      linears;  // Float8 linears by the name of their weight.
  for (const PlannedLinear& linear : plan.linears) {
    if (linear.is_float8()) linears.emplace(weight_of(linear.module), &linear);
  }
  // Paths of one module have the same first path.
  const auto first_path = [](const PlannedLinear& linear) {
    return linear.repeats.empty() ? linear.module : linear.repeats;
  };
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    ParameterInfo& parameter = model.parameters[i];
    const auto used = std::find_if(parameter.fqns.begin(), parameter.fqns.end(),
                                   [&](const std::string& fqn) { return linears.contains(fqn); });
    if (used == parameter.fqns.end() || parameter.replicated) continue;
    const PlannedLinear& linear = *linears.at(*used);
    const auto other =
        std::find_if(parameter.fqns.begin(), parameter.fqns.end(), [&](const std::string& fqn) {
          const auto found = linears.find(fqn);
          return found == linears.end() || first_path(*found->second) != first_path(linear);
        });
    if (other != parameter.fqns.end()) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("the weight of '{}' is to be gathered in float8, and is tied to '{}'; torchao "
                              "would train two separate weights",
                              text_of_module(linear.module), *other))
          .hint(kWithoutFloat8Gather);
    }
    if (apart.parameters.at(i).cross_unit) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("the weight of '{}' is to be gathered in float8, and the code "
                              "of another module reads it",
                              text_of_module(linear.module)))
          .hint(kWithoutFloat8Gather);
    }
    parameter.gathers_float8 = true;
  }
  return model;
}

}  // namespace accel
