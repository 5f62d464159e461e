#include "ckpt/store/adapter_names.hpp"

#include <algorithm>
#include <cstddef>

namespace accel::ckpt {
namespace {

constexpr std::string_view kAdapterName = ".default";
constexpr std::string_view kSavedModule = ".modules_to_save.default.";
constexpr std::string_view kMagnitude = ".lora_magnitude_vector.weight";

bool has(std::string_view name, std::string_view part) { return name.find(part) != std::string_view::npos; }

}  // namespace

std::string adapter_file_name(std::string_view fqn) {
  if (const std::size_t at = fqn.find(kSavedModule); at != std::string_view::npos)
    return std::string(fqn.substr(0, at)) + "." + std::string(fqn.substr(at + kSavedModule.size()));
  if (fqn.ends_with(kAdapterName)) return std::string(fqn.substr(0, fqn.size() - kAdapterName.size()));
  const std::size_t dot = fqn.rfind('.');
  if (dot == std::string_view::npos) return std::string(fqn);
  std::string_view module = fqn.substr(0, dot);
  if (module.ends_with(kAdapterName)) module.remove_suffix(kAdapterName.size());
  std::string name = std::string(module) + std::string(fqn.substr(dot));
  // Files of DoRA kept the name that the vector had when it was not a module.
  if (name.ends_with(kMagnitude)) name.resize(name.size() - std::string_view(".weight").size());
  return name;
}

bool are_adapter(const std::vector<std::string>& names) {
  const auto any_has = [&](std::string_view part) {
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return has(name, part); });
  };
  return any_has(".lora_") && !any_has(".base_layer.");
}

}  // namespace accel::ckpt
