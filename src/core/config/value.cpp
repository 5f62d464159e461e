#include "core/config/value.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <tuple>

namespace accel::config {

std::string text_of(const Origin& origin) {
  switch (origin.layer) {
    case Origin::Layer::kFlag:
      return origin.source;
    case Origin::Layer::kEnvironment:
      return fmt::format("environment variable {}", origin.source);
    case Origin::Layer::kFile:
      break;
  }
  return fmt::format("{}:{}:{}", origin.source, origin.line, origin.column);
}

std::string text_of(const Value& value) {
  struct Visitor {
    std::string operator()(std::monostate) const { return "null"; }
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(std::int64_t number) const { return fmt::format("{}", number); }
    std::string operator()(double number) const { return fmt::format("{}", number); }
    std::string operator()(const std::string& text) const { return text; }
    std::string operator()(const std::vector<std::string>& list) const {
      return fmt::format("[{}]", fmt::join(list, ", "));
    }
    std::string operator()(const std::vector<double>& list) const {
      return fmt::format("[{}]", fmt::join(list, ", "));
    }
    std::string operator()(const Texts& texts) const {
      std::vector<std::string> entries;
      for (const auto& [key, text] : texts) entries.push_back(fmt::format("{}: {}", key, text));
      return fmt::format("{{{}}}", fmt::join(entries, ", "));
    }
    std::string operator()(const std::vector<Texts>& sections) const {
      std::vector<std::string> entries;
      for (const Texts& section : sections) entries.push_back((*this)(section));
      return fmt::format("[{}]", fmt::join(entries, ", "));
    }
  };
  return std::visit(Visitor{}, value);
}

void Settings::add_below(const Settings& lower) {
  const auto hidden = [this](std::string_view path) {
    for (std::size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.', dot + 1)) {
      if (map_.contains(path.substr(0, dot))) return true;
    }
    return false;
  };
  for (const auto& [path, setting] : lower.map_) {
    if (!hidden(path)) map_.try_emplace(path, setting);
  }
}

const Setting* Settings::find(std::string_view path) const {
  const auto found = map_.find(path);
  return found == map_.end() ? nullptr : &found->second;
}

bool Settings::has(std::string_view section) const {
  for (auto it = map_.lower_bound(section); it != map_.end() && it->first.starts_with(section); ++it) {
    const bool below = it->first.size() == section.size() || it->first[section.size()] == '.';
    if (below && !std::holds_alternative<std::monostate>(it->second.value)) return true;
  }
  return false;
}

std::string Settings::where(std::string_view path) const {
  if (const Setting* setting = find(path)) return text_of(setting->origin) + ": ";
  const std::string prefix = std::string(path) + ".";
  const Setting* first = nullptr;
  const auto place = [](const Origin& o) { return std::tuple(o.layer, o.line, o.column); };
  for (auto it = map_.lower_bound(prefix); it != map_.end() && it->first.starts_with(prefix); ++it) {
    if (first == nullptr || place(it->second.origin) < place(first->origin)) first = &it->second;
  }
  return first == nullptr ? std::string() : text_of(first->origin) + ": ";
}

}  // namespace accel::config
