#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ckpt/pickle/fields.hpp"

namespace accel::ckpt {

/// What a `.metadata` lists, by FQN. A name's place in the order of the FQNs is its id. Refers to the input
/// of the document.
class DcpNames {
 public:
  struct Name {
    std::string_view fqn;
    pickle::Ref ref{};        ///< Of the text.
    std::uint32_t entry = 0;  ///< Of state_dict_metadata.
  };

  /// The keys of state_dict_metadata. One that comes twice is an Error (kCorrupt).
  explicit DcpNames(const pickle::NodePairs& state_dict);

  [[nodiscard]] std::size_t size() const { return names_.size(); }
  [[nodiscard]] const Name& operator[](std::size_t id) const { return names_[id]; }
  /// The id of an entry of state_dict_metadata.
  [[nodiscard]] std::uint32_t id_of(std::size_t entry) const { return ids_[entry]; }

 private:
  std::vector<Name> names_;
  std::vector<std::uint32_t> ids_;
};

/// Finds the ids of names as another dict of the metadata has them, one after another. One is for one thread.
class DcpNameFinder {
 public:
  explicit DcpNameFinder(const DcpNames& names) : names_(&names) {}

  /// Nothing if state_dict_metadata has no such name. What is no string is an Error (kCorrupt) about `what`.
  [[nodiscard]] std::optional<std::uint32_t> find(pickle::NodeRef name, std::string_view what);

 private:
  [[nodiscard]] std::uint32_t found_at(std::size_t entry);

  const DcpNames* names_;
  std::size_t last_entry_ = 0;
  std::unordered_map<std::string_view, std::uint32_t> table_;
};

}  // namespace accel::ckpt
