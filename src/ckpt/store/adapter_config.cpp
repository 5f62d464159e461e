#include "ckpt/store/adapter_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/files/file.hpp"
#include "base/files/json_text.hpp"

namespace accel::ckpt {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMostConfigBytes = std::uint64_t{16} << 20;

// Settings that say where an adapter is, how it is trained or what else is in its file, but not what it adds
// to a weight, as of PEFT 0.21.
constexpr std::array<std::string_view, 21> kWithoutEffect = {
    "auto_mapping", "base_model_name_or_path", "bias",           "corda_config",   "ensure_weight_tying",
    "eva_config",   "exclude_modules",         "inference_mode", "layers_pattern", "layers_to_transform",
    "lora_dropout", "lora_ga_config",          "loftq_config",   "megatron_core",  "modules_to_save",
    "peft_version", "qalora_group_size",       "revision",       "runtime_config", "target_modules",
    "task_type"};
// Settings that are read below.
constexpr std::array<std::string_view, 8> kRead = {"peft_type",    "init_lora_weights", "r",
                                                   "lora_alpha",   "use_rslora",        "fan_in_fan_out",
                                                   "rank_pattern", "alpha_pattern"};
// Values of init_lora_weights that leave the weights of the base as they are. The others, such as pissa,
// olora and corda, take something out of them, and the adapter holds that.
constexpr std::array<std::string_view, 3> kHarmlessStarts = {"gaussian", "eva", "orthogonal"};

template <std::size_t N>
bool has(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Whether a setting has the value with which PEFT leaves it out.
bool is_unset(const json& value) {
  return value.is_null() || value == false || ((value.is_object() || value.is_array()) && value.empty());
}

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorKind::kFailure, what + ", which accel does not merge")
      .hint("merge it in Python: merge_and_unload() of the PeftModel, then save_pretrained()");
}

double checked_rank(double value, const std::string& what) {
  if (std::isfinite(value) && value > 0 && std::trunc(value) == value) return value;
  throw Error(ErrorKind::kCorrupt, fmt::format("{} is {}, not a positive whole number", what, value));
}

// A rank is at least 1, so that a scaling is finite in float32 if alpha is.
double checked_alpha(double value, const std::string& what) {
  if (std::abs(value) <= std::numeric_limits<float>::max()) return value;
  throw Error(ErrorKind::kCorrupt, fmt::format("{} is {}, which is not finite in float32", what, value));
}

double positive_alpha(const json& document) {
  const double value = checked_alpha(document.at("lora_alpha").get<double>(), "'lora_alpha'");
  if (value > 0) return value;
  throw Error(ErrorKind::kCorrupt, fmt::format("'lora_alpha' is {}, not a positive number", value))
      .hint(value == 0 ? "the adapter adds nothing to its base: use the base as it is" : "");
}

// PEFT takes the first pattern of the file that matches, and `json` would sort them.
std::vector<std::pair<NamePattern, double>> patterns(const nlohmann::ordered_json& document, const char* key,
                                                     double (*checked)(double, const std::string&)) {
  std::vector<std::pair<NamePattern, double>> result;
  if (!document.contains(key) || document.at(key).is_null()) return result;
  for (const auto& [pattern, value] : document.at(key).items()) {
    result.emplace_back(NamePattern(fmt::format("(.*\\.)?({})", pattern)),
                        checked(value.get<double>(), fmt::format("'{}' of '{}'", pattern, key)));
  }
  return result;
}

double value_for(const std::vector<std::pair<NamePattern, double>>& patterns, std::string_view module,
                 double otherwise) {
  for (const auto& [pattern, value] : patterns) {
    if (pattern.matches(module)) return value;
  }
  return otherwise;
}

void check_kind(const json& document) {
  if (!document.contains("peft_type") && document.contains("lora_parameters")) {
    throw Error(ErrorKind::kFailure, "is of an adapter of MLX, which accel does not merge")
        .hint("`mlx_lm.fuse` merges it");
  }
  const std::string type = document.at("peft_type").get<std::string>();
  if (type != "LORA") refuse(fmt::format("the adapter is of the type {}", type));
  const json start = document.value("init_lora_weights", json(true));
  if (start.is_string() && !has(kHarmlessStarts, start.get<std::string>())) {
    refuse(fmt::format("init_lora_weights is '{}': the adapter began with other weights than the base has",
                       start.get<std::string>()));
  }
  for (const auto& [key, value] : document.items()) {
    if (is_unset(value) || has(kWithoutEffect, key) || has(kRead, key)) continue;
    refuse(fmt::format("the adapter has the setting {} = {}", key, value.dump()));
  }
}

}  // namespace

double AdapterConfig::rank_of(std::string_view module) const { return value_for(ranks, module, rank); }

double AdapterConfig::scaling_of(std::string_view module) const {
  const double own = rank_of(module);
  return value_for(alphas, module, alpha) / (divides_by_root ? std::sqrt(own) : own);
}

AdapterConfig read_adapter_config(const std::filesystem::path& path) {
  AdapterConfig config;
  use_json_file(path, kMostConfigBytes, [&](const json& document) {
    check_kind(document);
    config.rank = checked_rank(document.at("r").get<double>(), "'r'");
    config.alpha = positive_alpha(document);
    const auto is_set = [&](const char* key) {
      const auto value = document.find(key);
      return value != document.end() && !value->is_null() && value->get<bool>();
    };
    config.divides_by_root = is_set("use_rslora");
    config.fan_in_fan_out = is_set("fan_in_fan_out");
    const auto ordered = nlohmann::ordered_json::parse(read_text_file(path, kMostConfigBytes));
    config.ranks = patterns(ordered, "rank_pattern", checked_rank);
    config.alphas = patterns(ordered, "alpha_pattern", checked_alpha);
  });
  return config;
}

}  // namespace accel::ckpt
