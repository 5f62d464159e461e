#include "report/metrics_log.hpp"

#include <cerrno>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.hpp"

namespace accel {

MetricsLog::MetricsLog(const std::filesystem::path& path) : path_(path) {
  if (path_.empty()) return;
  out_.open(path_, std::ios::trunc);
  if (!out_) throw system_error("create", path_.string(), errno);
}

void MetricsLog::write(const nlohmann::ordered_json& line) {
  if (path_.empty()) return;
  out_ << line.dump() << std::endl;
  if (!out_) throw system_error("write", path_.string(), errno);
}

}  // namespace accel
