#include "core/config/config.hpp"

namespace accel::config {

std::vector<HeldOutData> DataConfig::held_out() const {
  if (!eval) return {};
  std::vector<HeldOutData> sets = {{"", *eval}};
  for (const auto& [name, path] : eval_sets) {
    sets.push_back({name, *eval});
    sets.back().source.path = path;
  }
  return sets;
}

std::filesystem::path log_root(const Config& config) {
  if (!config.launch.log_dir.empty()) return config.launch.log_dir;
  // The output_dir of an evaluation is temporary.
  if (!config.training || config.training->only_evaluates) return {};
  return config.training->output_dir / "logs";
}

}  // namespace accel::config
