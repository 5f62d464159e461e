#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <tuple>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/config/keys/other_accelerators.hpp"
#include "core/config/settings/settings.hpp"

namespace accel::config {
namespace {

/// Accelerate takes names in capitals or not. Keys with `choices` have been checked for them before.
bool is_built(const Key& key, const Setting& setting) {
  if (key.built == kEverything || std::holds_alternative<std::monostate>(setting.value)) return true;
  const std::vector<std::string> built = split(key.built, '|');
  const std::string text = lower_case(text_of(setting.value));
  return std::any_of(built.begin(), built.end(),
                     [&](const std::string& value) { return lower_case(value) == text; });
}

const OtherAccelerator* accelerator_of(const Key& key, const Setting& setting) {
  return key.path == "distributed_type" ? find_other_accelerator(text_of(setting.value)) : nullptr;
}

/// The system that a value of the key asks for; empty if there is none.
std::string system_of(const Key& key, const Setting& setting) {
  if (const OtherAccelerator* accelerator = accelerator_of(key, setting))
    return std::string(accelerator->devices);
  const std::string start = text_of(setting.value) + "=";
  for (const std::string& part : split(key.system, '|')) {
    if (part.starts_with(start)) return part.substr(start.size());
  }
  return std::string(key.system);
}

/// One machine needs no rendezvous, so that its kind does not matter, and a run in another precision has no
/// float8.
bool is_of_no_use(const Key& key, const Settings& settings) {
  if (is_below(key.path, "fp8_config")) return settings.get<std::string>("mixed_precision") != "fp8";
  return key.path == "rdzv_backend" && settings.get<std::int64_t>("num_machines").value_or(1) == 1;
}

}  // namespace

void check_built(const Settings& settings, bool only_launcher) {
  const Setting* first = nullptr;
  const Key* first_key = nullptr;
  const auto place = [](const Setting& s) {
    return std::tuple(s.origin.layer, s.origin.line, s.origin.column);
  };
  for (const auto& [path, setting] : settings.map()) {
    const Key* key = find_key(path);
    if (key == nullptr || (only_launcher && !key->has(kLauncher))) continue;
    if (is_built(*key, setting) || is_of_no_use(*key, settings)) continue;
    if (first == nullptr || place(setting) < place(*first))
      std::tie(first, first_key) = std::tuple(&setting, key);
  }
  if (first == nullptr) return;
  const Key& key = *first_key;
  const std::string asked =
      fmt::format("{}: '{}: {}'", text_of(first->origin), key.path, text_of(first->value));
  const std::string system = system_of(key, *first);
  Error error(ErrorKind::kUsage,
              system.empty() ? fmt::format("{} is not supported yet", asked)
                             : fmt::format("{} asks for {}, which accel does not have", asked, system));
  if (key.built.empty()) throw std::move(error).hint("leave the key out");
  std::string hint = fmt::format("what works: {}", fmt::join(split(key.built, '|'), ", "));
  if (const OtherAccelerator* accelerator = accelerator_of(key, *first)) {
    hint += fmt::format(
        "; {} would need {} of the version of accel's libtorch, {}, and a module of accel that loads both "
        "and makes c10d's backend {} (docs/accelerators.md)",
        accelerator->devices, accelerator->package, accelerator->library, accelerator->backend);
  }
  throw std::move(error).hint(std::move(hint));
}

}  // namespace accel::config
