#include "ckpt/read/name_rules.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <cstddef>

#include "base/error.hpp"

namespace accel::ckpt {
namespace {

// Replaces FROM once where a component of the name begins: at the front, or else behind the first dot that it
// follows.
std::string renamed(const std::string& name, const Rename& rule) {
  for (std::size_t at = 0; at != std::string::npos && at < name.size();) {
    if (name.compare(at, rule.first.size(), rule.first) == 0) {
      return name.substr(0, at) + rule.second + name.substr(at + rule.first.size());
    }
    at = name.find('.', at);
    if (at != std::string::npos) ++at;
  }
  return name;
}

}  // namespace

Rename parse_rename(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw Error(ErrorKind::kUsage, fmt::format("--rename '{}' is not FROM=TO", text))
        .hint("for example --rename module.= or --rename model.=transformer.");
  }
  return {text.substr(0, equals), text.substr(equals + 1)};
}

std::string Renames::apply(std::string name) {
  for (std::size_t r = 0; r < rules_.size(); ++r) {
    std::string next = renamed(name, rules_[r]);
    if (next == name) continue;
    hit_[r] = true;
    name = std::move(next);
  }
  return name;
}

void Renames::check_all_hit() const {
  const auto miss = std::find(hit_.begin(), hit_.end(), false);
  if (miss == hit_.end()) return;
  const Rename& rule = rules_[static_cast<std::size_t>(miss - hit_.begin())];
  throw Error(ErrorKind::kUsage, fmt::format("--rename '{}={}' changes no name", rule.first, rule.second))
      .hint("accel inspect lists the names");
}

bool Globs::any(const std::string& name) {
  bool found = false;
  for (std::size_t i = 0; i < globs_.size(); ++i) {
    if (::fnmatch(globs_[i].c_str(), name.c_str(), 0) != 0) continue;
    hit_[i] = true;
    found = true;
  }
  return found;
}

void Globs::check_all_hit() const {
  const auto miss = std::find(hit_.begin(), hit_.end(), false);
  if (miss == hit_.end()) return;
  throw Error(ErrorKind::kUsage, fmt::format("{} '{}' matches no tensor", flag_,
                                             globs_[static_cast<std::size_t>(miss - hit_.begin())]))
      .hint("accel inspect lists the names; quote the pattern, or the shell may expand it");
}

}  // namespace accel::ckpt
