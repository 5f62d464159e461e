#include "core/config/config.hpp"

namespace accel::config {

std::filesystem::path log_root(const Config& config) {
  if (!config.launch.log_dir.empty()) return config.launch.log_dir;
  return config.training ? config.training->output_dir / "logs" : std::filesystem::path();
}

}  // namespace accel::config
