#include "ckpt/verify/absent_shards.hpp"

#include <fmt/format.h>

#include <optional>
#include <set>
#include <system_error>

#include "base/files/directory.hpp"
#include "ckpt/store/rank_file_name.hpp"
#include "ckpt/torch/sharded_tensor.hpp"

namespace accel::ckpt {

bool AbsentShards::add(const std::string& name, const pickle::Value& value) {
  const std::optional<std::set<std::int64_t>> ranks = ranks_of_absent_shards(value);
  if (!ranks) return false;
  for (const std::int64_t rank : *ranks) tensors_of_rank_[rank].push_back(name);
  (void)sharded_tensor_of(value);  // Whatever a reader would call corrupt is a finding.
  return true;
}

void AbsentShards::report(const std::filesystem::path& file, std::vector<Finding>& findings) const {
  const std::string name = file.filename().string();
  const std::optional<RankFileName> parsed = parse_rank_file_name(name);
  for (const auto& [rank, tensors] : tensors_of_rank_) {
    const std::string whose =
        fmt::format("shards of rank {} of {} tensor{}", rank, tensors.size(), tensors.size() == 1 ? "" : "s");
    if (!parsed || rank < 0 || rank == parsed->rank) {
      findings.push_back({FindingKind::kHole, name, tensors.front(), 0, 0,
                          fmt::format("the {} are not in the file", whose)});
      continue;
    }
    const std::string other = parsed->of(rank);
    std::error_code unreadable;
    if (std::filesystem::exists(parent_of(file) / other, unreadable)) continue;
    findings.push_back({FindingKind::kMissingFile, other, "", 0, 0,
                        fmt::format("is not there; {} says that it has the {}", name, whose)});
  }
}

}  // namespace accel::ckpt
