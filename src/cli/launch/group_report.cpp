#include "cli/launch/group_report.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace accel::cli {

void print_groups(const std::vector<ParameterGroupInfo>& groups, Results& out) {
  std::vector<std::vector<std::string>> rows = {
      {"PARAMETERS", "TENSORS", "ELEMENTS", "OPTIMIZER", "LR", "DECAY"}};
  for (const ParameterGroupInfo& group : groups) {
    const bool is_trained = group.optimizer != "none";
    rows.push_back({group.pattern.empty() ? "(no pattern)" : group.pattern, std::to_string(group.tensors),
                    std::to_string(group.elements), group.optimizer,
                    is_trained ? fmt::format("{:g}", group.lr) : "",
                    is_trained ? fmt::format("{:g}", group.weight_decay) : ""});
  }
  out.table(std::move(rows), {"TENSORS", "ELEMENTS", "LR", "DECAY"});
}

nlohmann::ordered_json json_of(const std::vector<ParameterGroupInfo>& groups) {
  auto list = nlohmann::ordered_json::array();
  for (const ParameterGroupInfo& group : groups) {
    list.push_back({{"pattern", group.pattern},
                    {"tensors", group.tensors},
                    {"elements", group.elements},
                    {"optimizer", group.optimizer},
                    {"lr", group.lr},
                    {"weight_decay", group.weight_decay}});
  }
  return list;
}

}  // namespace accel::cli
