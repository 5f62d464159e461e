#include "core/config/resolve/members.hpp"

#include <fmt/format.h>

#include <string>

#include "base/error.hpp"
#include "core/config/keys/document.hpp"

namespace accel::config {

void fail_missing(std::string_view path, const Settings& settings, const std::filesystem::path& file) {
  // A null of the key, or of a section above it, asks for a default that does not exist.
  for (std::string_view section = path;; section = section.substr(0, section.rfind('.'))) {
    if (settings.find(section) != nullptr) {
      const std::string what = section == path
                                   ? fmt::format("'{}' is null", path)
                                   : fmt::format("'{}' is missing, because '{}' is null", path, section);
      throw Error(ErrorKind::kUsage, settings.where(section) + what).hint("it has no default");
    }
    if (section.find('.') == std::string_view::npos) break;
  }
  throw Error(ErrorKind::kUsage, fmt::format("{}: '{}' is missing", file.string(), path))
      .hint("it has no default");
}

void set_members(std::span<const Key> keys, const Settings& settings, const std::filesystem::path& file,
                 Config& config) {
  for (const Key& key : keys) {
    if (key.member.reach == nullptr || key.has(kComputed)) continue;
    void* const value = value_to_set(key, config);
    if (value == nullptr) continue;
    if (key.has(kRequired) && !settings.has(key.path)) fail_missing(key.path, settings, file);
    const Setting* setting = settings.find(key.path);
    if (setting == nullptr || std::holds_alternative<std::monostate>(setting->value)) continue;
    try {
      key.member.codec().set(setting->value, key.choices, value);
    } catch (const Error& error) {
      throw Error(error.kind(), fmt::format("{}'{}' {}", settings.where(key.path), key.path, error.message()))
          .hint(error.advice());
    }
  }
}

}  // namespace accel::config
