#include "core/config/config.hpp"

namespace accel::config {

std::filesystem::path log_root(const Config& config) {
  if (!config.launch.log_dir.empty()) return config.launch.log_dir;
  // The output_dir of an evaluation is temporary.
  if (!config.training || config.training->only_evaluates) return {};
  return config.training->output_dir / "logs";
}

}  // namespace accel::config
