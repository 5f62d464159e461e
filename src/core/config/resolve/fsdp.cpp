#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.hpp"
#include "base/name_pattern.hpp"
#include "base/text.hpp"
#include "core/config/keys/keys.hpp"
#include "core/config/loaded_config.hpp"
#include "core/config/names.hpp"
#include "core/config/resolve/resolve.hpp"

namespace accel::config {
namespace {

struct Strategy {
  std::string_view name;
  std::string_view number;  ///< Its value in torch.distributed.fsdp.ShardingStrategy.
  bool reshard;
  Spread spread;
};

constexpr std::array kStrategies = {
    Strategy{"FULL_SHARD", "1", true, Spread::kAll},
    Strategy{"SHARD_GRAD_OP", "2", false, Spread::kAll},
    Strategy{"NO_SHARD", "3", false, Spread::kNone},
    Strategy{"HYBRID_SHARD", "4", true, Spread::kMachine},
    Strategy{"HYBRID_SHARD_ZERO2", "5", false, Spread::kMachine},
};

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
  return text;
}

/// The strategy of version 1 that `path` names; absent if it is not set.
std::optional<Strategy> strategy_at(const Settings& settings, std::string_view path) {
  const auto text = settings.get<std::string>(path);
  if (!text) return std::nullopt;
  const std::string word = upper(*text);
  for (const Strategy& strategy : kStrategies) {
    if (strategy.name != word && strategy.number != word) continue;
    return strategy;
  }
  Error error(ErrorKind::kUsage,
              fmt::format("{}'{}' must be a sharding strategy in FSDP version 1; found '{}'",
                          settings.where(path), path, *text));
  if (word == "TRUE" || word == "FALSE")
    throw std::move(error).hint("true and false are for fsdp_version: 2");
  std::vector<std::string> names;
  names.reserve(kStrategies.size());
  for (const Strategy& strategy : kStrategies) names.emplace_back(strategy.name);
  if (const auto near = nearest(word, names))
    throw std::move(error).hint(fmt::format("did you mean '{}'?", *near));
  throw std::move(error).hint(fmt::format("the strategies: {}", fmt::join(names, ", ")));
}

/// The strategy that the settings ask for, FULL_SHARD by default.
Strategy strategy_of_version_1(const Settings& settings) {
  static constexpr std::string_view kOld = "fsdp_config.sharding_strategy";
  static constexpr std::string_view kNew = "fsdp_config.reshard_after_forward";
  const auto old_style = strategy_at(settings, kOld);
  const auto new_style = strategy_at(settings, kNew);
  if (old_style && new_style && old_style->name != new_style->name) {
    throw Error(ErrorKind::kUsage, fmt::format("{}'{}: {}' contradicts '{}: {}'", settings.where(kNew), kNew,
                                               new_style->name, kOld, old_style->name))
        .hint("keep one of the two");
  }
  return new_style ? *new_style : old_style.value_or(kStrategies.front());
}

void reshard_of_version_2(const Settings& settings, FsdpConfig& fsdp) {
  static constexpr std::string_view kPath = "fsdp_config.reshard_after_forward";
  const auto text = settings.get<std::string>(kPath);
  if (!text) return;
  const std::string word = upper(*text);
  if (word == "TRUE" || word == "YES" || word == "ON") return;
  if (word == "FALSE" || word == "NO" || word == "OFF") {
    fsdp.reshard_after_forward = false;
    return;
  }
  const int ranks = parse_int(word).value_or(-1);
  if (ranks < 0) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{}'{}' must be true, false or a number of ranks in FSDP version 2; found '{}'",
                            settings.where(kPath), kPath, *text))
        .hint("strategies such as FULL_SHARD are for fsdp_version: 1");
  }
  if (ranks < 2) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{}'{}: {}' could mean two things", settings.where(kPath), kPath, *text))
        .hint(ranks == 0 ? "write false"
                         : "Accelerate takes 1 for true, fully_shard for false: write one of them");
  }
  fsdp.reshard_size = ranks;
}

/// Says what is set and has no effect, because the engine has one way for it.
void warn_of_fsdp(const Settings& settings, std::vector<std::string>& warnings) {
  for (const std::string_view key : kAlwaysOn) {
    if (settings.get<bool>(key).value_or(true)) continue;
    warnings.push_back(
        fmt::format("{}'{}: false' has no effect: {}", settings.where(key), key, find_key(key)->no_effect));
  }
  static constexpr std::string_view kBackward = "fsdp_config.backward_prefetch";
  if (settings.get<std::string>(kBackward) == "BACKWARD_POST") {
    warnings.push_back(
        fmt::format("{}'{}: BACKWARD_POST' acts as BACKWARD_PRE", settings.where(kBackward), kBackward));
  }
}

}  // namespace

StrategyName strategy_name(const Settings& settings) {
  const Strategy strategy = strategy_of_version_1(settings);
  return {strategy.name, strategy.spread};
}

void resolve_fsdp(FsdpConfig& fsdp, const Settings& settings, std::vector<std::string>& warnings) {
  if (fsdp.version == 1) {
    fsdp.reshard_after_forward = strategy_of_version_1(settings).reshard;
  } else {
    reshard_of_version_2(settings, fsdp);
  }
  // By default version 1 does not prefetch, and version 2 does.
  fsdp.forward_prefetch = settings.get<bool>("fsdp_config.forward_prefetch").value_or(fsdp.version == 2);
  const auto backward = settings.get<std::string>("fsdp_config.backward_prefetch");
  fsdp.backward_prefetch = backward ? *backward != "NO_PREFETCH" : fsdp.version == 2;
  static constexpr std::string_view kKeptOnHost = "fsdp_config.activation_checkpointing_offload";
  if (fsdp.activation_offload && !fsdp.activation_checkpointing) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{}'{}: true' needs 'fsdp_config.activation_checkpointing: true'",
                            settings.where(kKeptOnHost), kKeptOnHost));
  }
  static constexpr std::string_view kPolicy = "fsdp_config.auto_wrap_policy";
  if (settings.has(kPolicy)) {
    fsdp.wrap_origin =
        fmt::format("{}'{}: {}'", settings.where(kPolicy), kPolicy, name_of(fsdp.auto_wrap_policy));
  }
  static constexpr std::string_view kClasses = "fsdp_config.transformer_layer_cls_to_wrap";
  if (!fsdp.transformer_layer_cls_to_wrap.empty())
    fsdp.wrap_origin = fmt::format("{}'{}'", settings.where(kClasses), kClasses);
  static constexpr std::string_view kIgnored = "fsdp_config.ignored_modules";
  if (settings.has(kIgnored)) {
    fsdp.ignored_origin = fmt::format("{}'{}'", settings.where(kIgnored), kIgnored);
    blamed_on(kIgnored, settings, [&] { (void)NamePattern(fsdp.ignored_modules); });
  }
  warn_of_fsdp(settings, warnings);
  static constexpr std::string_view kStateDict = "fsdp_config.state_dict_type";
  if (fsdp.version == 2 && settings.get<std::string>(kStateDict) == "LOCAL_STATE_DICT") {
    throw Error(
        ErrorKind::kUsage,
        fmt::format("{}'{}: LOCAL_STATE_DICT' contradicts 'fsdp_config.version: 2', which has no such type",
                    settings.where(kStateDict), kStateDict))
        .hint("use SHARDED_STATE_DICT");
  }
  if (fsdp.version == 2 && settings.has("fsdp_config.sharding_strategy")) {
    warnings.push_back(fmt::format("{}'fsdp_config.sharding_strategy' has no effect in FSDP version 2",
                                   settings.where("fsdp_config.sharding_strategy")));
  }
}

}  // namespace accel::config
