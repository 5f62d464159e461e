#include "report/metrics_log.hpp"

#include <cerrno>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.hpp"
#include "base/files/atomic_file.hpp"
#include "base/files/file.hpp"
#include "base/files/json_text.hpp"

namespace accel {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 32;

}  // namespace

void MetricsLog::open(std::int64_t step) {
  if (path_.empty()) return;
  cut_metrics(path_, step);
  out_.open(path_, std::ios::app);
  if (!out_) throw system_error("open", path_.string(), errno);
}

void MetricsLog::write(const nlohmann::ordered_json& line) {
  if (path_.empty()) return;
  out_ << line.dump() << std::endl;
  if (!out_) throw system_error("write", path_.string(), errno);
}

void cut_metrics(const std::filesystem::path& path, std::int64_t step) {
  if (!std::filesystem::exists(path)) return;
  const std::string text = read_text_file(path, kMostBytes);
  std::string kept;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;
    const std::string_view line(text.data() + begin, end + 1 - begin);
    const auto document = parse_json_or_discard(line);
    const bool is_later = document.is_object() && document.contains("step") &&
                          document.at("step").is_number_integer() && document.at("step") > step;
    if (!is_later) kept += line;
    begin = end + 1;
  }
  if (kept.size() != text.size()) write_file_atomically(std::filesystem::canonical(path), kept);
}

}  // namespace accel
