#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/config/keys/keys.hpp"
#include "core/launch/world/environment.hpp"

namespace accel::launch {
namespace {

/// The value as Accelerate writes it: a list with commas alone.
std::string value_for_script(const config::Value& value) {
  const auto* list = std::get_if<std::vector<std::string>>(&value);
  return list != nullptr ? fmt::format("{}", fmt::join(*list, ",")) : config::text_of(value);
}

/// Passes the keys below a section that have a variable.
void pass(const config::Settings& settings, std::string_view section, Variables& variables) {
  for (const auto table : config::key_tables()) {
    for (const config::Key& key : table) {
      if (key.variable.empty() || !config::is_below(key.path, section)) continue;
      const std::string name(key.variable);
      if (settings.has(key.path)) {
        variables[name] = value_for_script(settings.find(key.path)->value);
      } else if (key.passed != nullptr) {
        variables[name] = key.passed;
      }
    }
  }
}

/// The variables of fp8_config.override_linear_precision, a list of three.
constexpr auto kFp8Overrides = std::to_array<const char*>(
    {"ACCELERATE_FP8_OVERRIDE_FPROP", "ACCELERATE_FP8_OVERRIDE_DGRAD", "ACCELERATE_FP8_OVERRIDE_WGRAD"});

void pass_fp8(const config::Settings& settings, Variables& variables) {
  pass(settings, "fp8_config", variables);
  static constexpr std::string_view kKey = "fp8_config.override_linear_precision";
  using Words = std::vector<std::string>;
  const Words words = settings.get<Words>(kKey).value_or(Words(kFp8Overrides.size(), "False"));
  if (words.size() != kFp8Overrides.size()) {
    throw Error(ErrorKind::kUsage, fmt::format("{}'{}' must be three truth values, found {}",
                                               settings.where(kKey), kKey, words.size()));
  }
  for (std::size_t i = 0; i < words.size(); ++i) {
    // A list that is written as a text has the brackets of Python.
    const std::size_t begin = std::min(words[i].find_first_not_of("([ "), words[i].size());
    const std::size_t end = words[i].find_last_not_of(")] ") + 1;
    variables[kFp8Overrides[i]] = words[i].substr(begin, std::max(begin, end) - begin);
  }
}

/// The compiler of torch.compile, in capitals as Accelerate passes it.
std::string dynamo_backend(const config::Settings& settings) {
  const auto older = settings.get<std::string>("dynamo_backend");
  std::string backend = settings.get<std::string>("dynamo_config.backend").value_or(older.value_or("NO"));
  for (char& c : backend) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return backend == "FALSE" ? "NO" : backend;
}

}  // namespace

Variables accelerate_variables(const config::LoadedConfig& loaded) {
  const config::Settings& settings = loaded.settings;
  Variables variables = {
      {"ACCELERATE_MIXED_PRECISION", loaded.config.mixed_precision},
  };
  pass(settings, "dynamo_config", variables);
  variables["ACCELERATE_DYNAMO_BACKEND"] = dynamo_backend(settings);
  const bool cpu_by_choice = settings.get<bool>("use_cpu").value_or(false) ||
                             loaded.config.distributed_type == config::DistributedType::kMultiCpu;
  if (cpu_by_choice) variables["ACCELERATE_USE_CPU"] = "True";
  if (settings.get<bool>("debug").value_or(false)) variables["ACCELERATE_DEBUG_MODE"] = "true";
  if (settings.get<bool>("enable_cpu_affinity").value_or(false))
    variables.emplace("ACCELERATE_CPU_AFFINITY", "1");
  if (loaded.config.distributed_type == config::DistributedType::kFsdp) {
    variables["ACCELERATE_USE_FSDP"] = "true";
    pass(settings, "fsdp_config", variables);
    std::string& reshard = variables["FSDP_RESHARD_AFTER_FORWARD"];
    reshard = lower_case(reshard);
  }
  if (settings.has("parallelism_config")) {
    variables[config::kUseParallelism] = "true";
    pass(settings, "parallelism_config", variables);
    // The defaults of what only more than one process along an axis needs.
    if (settings.get<std::int64_t>("parallelism_config.cp_size").value_or(1) > 1)
      variables.try_emplace("PARALLELISM_CONFIG_CP_COMM_STRATEGY", "allgather");
    if (settings.get<std::int64_t>("parallelism_config.sp_size").value_or(1) > 1) {
      variables.try_emplace("PARALLELISM_CONFIG_SP_SEQ_LENGTH", "None");
      variables.try_emplace("PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE", "True");
      variables.try_emplace("PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION", "sdpa");
    }
  }
  if (loaded.config.has_float8()) pass_fp8(settings, variables);
  return variables;
}

}  // namespace accel::launch
