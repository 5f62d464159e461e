#include <fmt/format.h>

#include "base/error.hpp"
#include "core/config/names.hpp"
#include "core/config/resolve/resolve.hpp"

namespace accel::config {
namespace {

constexpr std::string_view kFloat8Asked = "'mixed_precision: fp8'";
constexpr std::string_view kRecipe = "training.float8.recipe";
constexpr std::string_view kFloat8Gather = "fp8_config.enable_fsdp_float8_all_gather";

/// The first compute capability whose tensor cores multiply float8: Ada Lovelace, and Hopper above it.
constexpr double kFloat8Capability = 8.9;

/// The compute capability of the ranks' GPUs, if it is known and they have no float8 products.
std::optional<double> too_low_capability(const Config& config, const ConfigRequest& request) {
  if (config.launch.use_cpu || request.only_plans || !request.compute_capability) return std::nullopt;
  const std::optional<double> found = request.compute_capability(config.launch.gpu_ids);
  return found && *found < kFloat8Capability ? found : std::nullopt;
}

}  // namespace

void resolve_float8(Config& config, const Settings& settings, const ConfigRequest& request,
                    std::vector<std::string>& warnings) {
  if (!config.has_float8()) return;
  if (const auto capability = too_low_capability(config, request)) {
    warnings.push_back(fmt::format(
        "{}{} needs GPUs of compute capability {} or later, and found {:.1f}: the run computes in "
        "fp16, as with Accelerate",
        settings.where("mixed_precision"), kFloat8Asked, kFloat8Capability, *capability));
    config.mixed_precision = "fp16";
    return;
  }
  const auto recipe = settings.get<std::string>(kRecipe);
  if (!config.gathers_float8() || !recipe || *recipe == name_of(Float8Recipe::kTensorwise)) return;
  throw Error(
      ErrorKind::kUsage,
      fmt::format("{}'{}: {}' has a scale for each row, and '{}: true'{} gathers weights with one scale "
                  "each, in float8",
                  settings.where(kRecipe), kRecipe, *recipe, kFloat8Gather,
                  settings.has(kFloat8Gather) ? "" : ", its default,"))
      .hint(fmt::format("set {} to false: weights are gathered in bfloat16, and each rank converts them",
                        kFloat8Gather));
}

}  // namespace accel::config
