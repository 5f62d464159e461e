#include "ckpt/dcp/names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.hpp"

namespace accel::ckpt {

DcpNames::DcpNames(const pickle::NodePairs& state_dict) {
  names_.reserve(state_dict.size());
  for (std::size_t i = 0; i < state_dict.size(); ++i) {
    names_.push_back({pickle::require_text(state_dict.key(i), "a key of state_dict_metadata"),
                      state_dict.key(i).id(), static_cast<std::uint32_t>(i)});
  }
  const auto less = [](const Name& a, const Name& b) { return a.fqn < b.fqn; };
  std::stable_sort(names_.begin(), names_.end(), less);
  const auto twice = std::adjacent_find(names_.begin(), names_.end(),
                                        [](const Name& a, const Name& b) { return a.fqn == b.fqn; });
  if (twice != names_.end()) throw Error(ErrorKind::kCorrupt, fmt::format("'{}' comes twice", twice->fqn));
  ids_.resize(names_.size());
  for (std::size_t id = 0; id < names_.size(); ++id) ids_[names_[id].entry] = static_cast<std::uint32_t>(id);
}

// Most other dicts name the entries in the order of state_dict_metadata, perhaps several times over. A table
// is made only if a dict does not.
std::optional<std::uint32_t> DcpNameFinder::find(pickle::NodeRef name, std::string_view what) {
  const DcpNames& names = *names_;
  const std::array<std::size_t, 3> guesses{last_entry_, last_entry_ + 1, std::size_t{0}};
  // Equal references are equal texts, which then need not be compared.
  for (const std::size_t guess : guesses) {
    if (guess < names.size() && names[names.id_of(guess)].ref == name.id()) return found_at(guess);
  }
  const std::string_view fqn = pickle::require_text(name, what);
  for (const std::size_t guess : guesses) {
    if (guess < names.size() && names[names.id_of(guess)].fqn == fqn) return found_at(guess);
  }
  if (table_.empty()) {
    table_.reserve(names.size());
    for (std::size_t id = 0; id < names.size(); ++id)
      table_.emplace(names[id].fqn, static_cast<std::uint32_t>(id));
  }
  const auto found = table_.find(fqn);
  if (found == table_.end()) return std::nullopt;
  last_entry_ = names[found->second].entry;
  return found->second;
}

std::uint32_t DcpNameFinder::found_at(std::size_t entry) {
  last_entry_ = entry;
  return names_->id_of(entry);
}

}  // namespace accel::ckpt
