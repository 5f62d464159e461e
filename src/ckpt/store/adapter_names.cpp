#include "ckpt/store/adapter_names.hpp"

#include <algorithm>
#include <cstddef>
#include <set>

namespace accel::ckpt {
namespace {

constexpr std::string_view kAdapterName = ".default";
constexpr std::string_view kSavedModule = ".modules_to_save.";
constexpr std::string_view kLora = ".lora_";
constexpr std::string_view kMagnitude = ".lora_magnitude_vector.weight";

/// The component of `name` that begins at `at`.
std::string_view component_at(std::string_view name, std::size_t at) {
  return name.substr(at, std::min(name.find('.', at), name.size()) - at);
}

}  // namespace

std::string adapter_file_name(std::string_view fqn) {
  const std::string saved = std::string(kSavedModule) + "default.";
  if (const std::size_t at = fqn.find(saved); at != std::string_view::npos)
    return std::string(fqn.substr(0, at)) + "." + std::string(fqn.substr(at + saved.size()));
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

std::optional<std::string> other_adapter_of(std::string_view fqn) {
  std::size_t at = fqn.find(kSavedModule);
  if (at != std::string_view::npos) {
    at += kSavedModule.size();
  } else {
    at = fqn.rfind(kLora);
    if (at == std::string_view::npos) return std::nullopt;
    at = fqn.find('.', at + 1);  // Behind "lora_A".
    if (at == std::string_view::npos) return std::nullopt;
    ++at;
  }
  const std::string_view name = component_at(fqn, at);
  if (name == "default" || name == "weight" || name == "bias") return std::nullopt;
  return std::string(name);
}

bool is_original_module(std::string_view fqn) {
  return fqn.find(".original_module.") != std::string_view::npos;
}

bool are_adapter(const std::vector<std::string>& names) {
  const std::set<std::string_view> all(names.begin(), names.end());
  bool found = false;
  for (const std::string& name : names) {
    const std::size_t at = name.find(kLora);
    if (at == std::string::npos) continue;
    found = true;
    const std::string layer = name.substr(0, at);
    if (all.contains(layer + ".weight") || all.contains(layer + ".base_layer.weight")) return false;
  }
  return found;
}

}  // namespace accel::ckpt
