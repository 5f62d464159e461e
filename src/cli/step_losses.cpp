#include "cli/step_losses.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/files/file.hpp"
#include "base/files/json_text.hpp"
#include "base/interrupt.hpp"

namespace accel::cli {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 32;

void take_loss(const nlohmann::json& record, const char* name, std::map<std::int64_t, double>& losses) {
  const auto loss = record.find(name);
  if (loss == record.end() || !loss->is_number() || !std::isfinite(loss->get<double>())) return;
  losses[record.at("step").get<std::int64_t>()] = loss->get<double>();
}

}  // namespace

std::optional<double> StepLosses::training_at(std::int64_t step) const {
  const auto behind = training.upper_bound(step);
  return behind == training.begin() ? std::nullopt : std::optional(std::prev(behind)->second);
}

std::optional<double> StepLosses::held_out_at(std::int64_t step) const {
  const auto found = held_out.find(step);
  return found == held_out.end() ? std::nullopt : std::optional(found->second);
}

StepLosses read_step_losses(const std::filesystem::path& metrics) {
  StepLosses losses;
  if (!std::filesystem::exists(metrics)) return losses;
  const std::string text = read_text_file(metrics, kMostBytes);
  for (std::size_t begin = 0; begin < text.size();) {
    check_interrupted();
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;
    const auto record = parse_json_or_discard(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
    if (!record.is_object() || !record.contains("step") || !record.at("step").is_number_integer()) continue;
    take_loss(record, "loss", losses.training);
    take_loss(record, "eval_loss", losses.held_out);
  }
  return losses;
}

}  // namespace accel::cli
