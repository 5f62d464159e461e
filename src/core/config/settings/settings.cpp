#include "core/config/settings/settings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/config/settings/convert.hpp"

namespace accel::config {
namespace {

std::string joined(std::string_view section, std::string_view name) {
  return section.empty() ? std::string(name) : fmt::format("{}.{}", section, name);
}

/// Names of transformers' TrainingArguments and of trl's configurations, and the keys that set the same.
constexpr std::pair<std::string_view, std::string_view> kOfTrainer[] = {
    {"adam_beta1", "training.optimizer.betas"},
    {"adam_beta2", "training.optimizer.betas"},
    {"adam_epsilon", "training.optimizer.eps"},
    {"bf16", "mixed_precision"},
    {"dataloader_drop_last", "training.data.drop_last"},
    {"dataloader_num_workers", "training.data.workers"},
    {"early_stopping_patience", "training.early_stopping.patience"},
    {"eval_steps", "training.eval_every"},
    {"gradient_checkpointing", "fsdp_config.fsdp_activation_checkpointing"},
    {"label_smoothing_factor", "training.model.label_smoothing"},
    {"learning_rate", "training.optimizer.lr"},
    {"load_best_model_at_end", "training.checkpoint.keep_best"},
    {"logging_steps", "training.log_every"},
    {"lr_scheduler_type", "training.lr_scheduler.type"},
    {"max_length", "training.data.train.sequence_length"},
    {"max_seq_length", "training.data.train.sequence_length"},
    {"metric_for_best_model", "training.best_metric"},
    {"num_train_epochs", "training.epochs"},
    {"optim", "training.optimizer.type"},
    {"packing", "training.data.train.packing"},
    {"per_device_eval_batch_size", "training.data.batch_size"},
    {"per_device_train_batch_size", "training.data.batch_size"},
    {"report_to", "training.metrics"},
    {"resume_from_checkpoint", "training.checkpoint.resume"},
    {"save_steps", "training.checkpoint.every"},
    {"save_total_limit", "training.checkpoint.total_limit"},
    {"torch_compile", "dynamo_config.dynamo_backend"},
    {"warmup_ratio", "training.lr_scheduler.warmup_steps"},
};

[[noreturn]] void fail_unknown(std::string_view section, const std::string& key, const Origin& origin) {
  std::vector<std::string> known = names_in_section(section);
  const std::string_view prefix = section_prefix(section);
  if (!prefix.empty() && key.starts_with(prefix)) {
    // Suggest in the spelling that was used.
    for (std::string& name : known) name.insert(0, prefix);
  }
  const std::string where = section.empty() ? "at the top level" : fmt::format("in '{}'", section);
  Error error(ErrorKind::kUsage, fmt::format("{}: unknown key '{}' {}", text_of(origin), key, where));
  for (const std::string& other : names_in_section("")) {
    if (other != section && !section_prefix(other).empty() && key.starts_with(section_prefix(other)) &&
        find_key(joined(other, canonical_key(other, key))) != nullptr)
      throw std::move(error).hint(fmt::format("it belongs below '{}', indented", other));
  }
  for (const auto& [theirs, ours] : kOfTrainer) {
    if (key == theirs)
      throw std::move(error).hint(
          fmt::format("what transformers' TrainingArguments call '{}' is '{}'", key, ours));
  }
  const auto near = nearest(key, known);
  if (near && near->size() + 1 >= key.size() && key.size() + 1 >= near->size())
    throw std::move(error).hint(fmt::format("did you mean '{}'?", *near));
  if (const auto whole = key_named_last(key))
    throw std::move(error).hint(fmt::format("did you mean '{}'?", *whole));
  if (near) throw std::move(error).hint(fmt::format("did you mean '{}'?", *near));
  if (known.empty()) throw std::move(error).hint(fmt::format("set '{}' as a whole", section));
  throw std::move(error).hint(fmt::format("known keys: {}", fmt::join(known, ", ")));
}

void flatten(const YamlNode& node, const std::string& path, Settings& out);

void flatten_section(const YamlNode& node, const std::string& section, Settings& out) {
  std::map<std::string, Origin> seen;
  for (const YamlNode::Entry& entry : node.entries) {
    const std::string_view name = canonical_key(section, entry.key);
    const std::string path = joined(section, name);
    if (find_key(path) == nullptr && (name.empty() || !is_section(path)))
      fail_unknown(section, entry.key, entry.origin);
    const auto [first, is_new] = seen.try_emplace(path, entry.origin);
    if (!is_new) {
      throw Error(ErrorKind::kUsage, fmt::format("{}: '{}' is set twice", text_of(entry.origin), path))
          .hint(fmt::format("it is first set at {}", text_of(first->second)));
    }
    flatten(entry.value, path, out);
  }
}

void flatten(const YamlNode& node, const std::string& path, Settings& out) {
  const Key* key = path.empty() ? nullptr : find_key(path);
  const bool is_empty_section = node.kind == YamlNode::Kind::kMap && node.entries.empty();
  if (node.kind == YamlNode::Kind::kNull || (key != nullptr && key->type == Type::kAny && is_empty_section)) {
    if (!path.empty()) out.set(path, {std::monostate{}, node.origin});
  } else if (key != nullptr) {
    out.set(path, {convert_value(*key, node), node.origin});
  } else if (node.kind == YamlNode::Kind::kMap) {
    flatten_section(node, path, out);
  } else {
    throw Error(ErrorKind::kUsage,
                fmt::format("{}: {} must be a section of keys, found {}", text_of(node.origin),
                            path.empty() ? "the file" : fmt::format("'{}'", path), describe(node)));
  }
}

/// Removes the optional prefixes: "fsdp_config.fsdp_version" is "fsdp_config.version".
std::string canonical_path(std::string_view path) {
  std::string canonical;
  for (const std::string& part : split(path, '.'))
    canonical = joined(canonical, canonical_key(canonical, part));
  return canonical;
}

/// The key above `path` whose value is not checked, since nobody looks into a section of another system; else
/// `path`.
std::string checked_path(const std::string& path) {
  for (std::size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', dot + 1)) {
    const Key* key = find_key(path.substr(0, dot));
    if (key != nullptr && key->type == Type::kAny) return path.substr(0, dot);
  }
  return path;
}

void check_path(const std::string& path, const Origin& origin) {
  std::string section;
  for (const std::string& name : split(path, '.')) {
    const std::string longer = joined(section, name);
    if (name.empty() || (find_key(longer) == nullptr && !is_section(longer)))
      fail_unknown(section, name, origin);
    section = longer;
  }
}

YamlNode scalar_node(std::string_view text, Origin origin) {
  YamlNode node;
  node.kind = YamlNode::Kind::kScalar;
  node.text = text;
  node.origin = std::move(origin);
  return node;
}

}  // namespace

Settings settings_from_yaml(const YamlNode& root) {
  Settings settings;
  flatten(root, "", settings);
  return settings;
}

Settings systems_from_yaml(const YamlNode& root) {
  Settings settings;
  for (const YamlNode::Entry& entry : root.entries) {
    const Key* key = find_key(entry.key);
    if (key != nullptr && !key->system.empty()) flatten(entry.value, entry.key, settings);
  }
  return settings;
}

Settings settings_from_assignment(std::string_view assignment) {
  const Origin origin{Origin::Layer::kFlag, fmt::format("--set {}", assignment)};
  const std::size_t equals = assignment.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    throw Error(ErrorKind::kUsage, fmt::format("{}: expected KEY=VALUE", text_of(origin)))
        .hint("for example --set training.optimizer.lr=1e-4");
  }
  const std::string path = checked_path(canonical_path(trim(assignment.substr(0, equals))));
  check_path(path, origin);
  Settings settings;
  flatten(parse_yaml(assignment.substr(equals + 1), origin), path, settings);
  return settings;
}

Settings settings_from_flag(std::string_view path, std::string_view value, std::string_view shown) {
  Settings settings;
  flatten(scalar_node(value, {Origin::Layer::kFlag, std::string(shown)}), std::string(path), settings);
  return settings;
}

Settings settings_from_environment(const Environment& environment, const Settings& above) {
  Settings settings;
  const auto node_of = [&](const std::string& name) -> std::optional<YamlNode> {
    const std::optional<std::string> value = environment(name);
    if (!value || value->empty() || *value == "None") return std::nullopt;
    return scalar_node(*value, {Origin::Layer::kEnvironment, name});
  };
  const auto is_on = [&](const char* name) {
    const auto node = node_of(name);
    return node && std::get<bool>(convert_value({.path = name, .type = Type::kBool}, *node));
  };
  const bool has_parallelism = is_on(kUseParallelism);
  const auto take = [&](const Key& key) {
    if (key.variable.empty() || key.has(kOnlyPassed) || above.find(key.path) != nullptr) return;
    if (is_below(key.path, "parallelism_config") && !has_parallelism) return;
    if (const auto node = node_of(std::string(key.variable))) flatten(*node, std::string(key.path), settings);
  };
  for (const auto table : key_tables()) std::for_each(table.begin(), table.end(), take);
  constexpr const char* kUseFsdp = "ACCELERATE_USE_FSDP";
  if (above.find("distributed_type") == nullptr && is_on(kUseFsdp))
    settings.set("distributed_type", {std::string("FSDP"), {Origin::Layer::kEnvironment, kUseFsdp}});
  return settings;
}

}  // namespace accel::config
