#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "core/config/accelerate_variables.hpp"
#include "core/launch/world/environment.hpp"

namespace accel::launch {
namespace {

/// The value as Accelerate writes it: a list with commas alone.
std::string value_for_script(const config::Value& value) {
  const auto* list = std::get_if<std::vector<std::string>>(&value);
  return list != nullptr ? fmt::format("{}", fmt::join(*list, ",")) : config::text_of(value);
}

void pass(const config::Settings& settings, std::span<const config::AccelerateVariable> table,
          Variables& variables) {
  for (const config::AccelerateVariable& row : table) {
    if (settings.has(row.path)) {
      variables[row.name] = value_for_script(settings.find(row.path)->value);
    } else if (row.otherwise != nullptr) {
      variables[row.name] = row.otherwise;
    }
  }
}

void pass_fp8(const config::Settings& settings, Variables& variables) {
  pass(settings, config::kFp8Variables, variables);
  static constexpr std::string_view kKey = "fp8_config.override_linear_precision";
  using Words = std::vector<std::string>;
  const Words words = settings.get<Words>(kKey).value_or(Words(config::kFp8Overrides.size(), "False"));
  if (words.size() != config::kFp8Overrides.size()) {
    throw Error(ErrorKind::kUsage, fmt::format("{}'{}' must be three truth values, found {}",
                                               settings.where(kKey), kKey, words.size()));
  }
  for (std::size_t i = 0; i < words.size(); ++i) variables[config::kFp8Overrides[i]] = words[i];
}

}  // namespace

Variables accelerate_variables(const config::LoadedConfig& loaded) {
  const config::Settings& settings = loaded.settings;
  Variables variables = {
      {"ACCELERATE_MIXED_PRECISION", loaded.config.mixed_precision},
      {"ACCELERATE_DYNAMO_BACKEND", "NO"},
      {"ACCELERATE_DYNAMO_MODE", "default"},
      {"ACCELERATE_DYNAMO_USE_FULLGRAPH", "False"},
      {"ACCELERATE_DYNAMO_USE_DYNAMIC", "False"},
      {"ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", "False"},
  };
  const bool cpu_by_choice = settings.get<bool>("use_cpu").value_or(false) ||
                             loaded.config.distributed_type == config::DistributedType::kMultiCpu;
  if (cpu_by_choice) variables["ACCELERATE_USE_CPU"] = "True";
  if (settings.get<bool>("debug").value_or(false)) variables["ACCELERATE_DEBUG_MODE"] = "true";
  if (settings.get<bool>("enable_cpu_affinity").value_or(false))
    variables.emplace("ACCELERATE_CPU_AFFINITY", "1");
  if (loaded.config.distributed_type == config::DistributedType::kFsdp) {
    variables["ACCELERATE_USE_FSDP"] = "true";
    pass(settings, config::kFsdpVariables, variables);
    std::string& reshard = variables["FSDP_RESHARD_AFTER_FORWARD"];
    for (char& c : reshard) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  if (settings.has("parallelism_config")) {
    variables[config::kUseParallelism] = "true";
    pass(settings, config::kParallelismVariables, variables);
  }
  if (loaded.config.mixed_precision == "fp8") pass_fp8(settings, variables);
  return variables;
}

}  // namespace accel::launch
