#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ckpt/pickle/fields.hpp"

namespace accel::ckpt {

/// The FQNs of a `.metadata`. The id of a name is its place in the order of all FQNs. The input of the
/// document must outlive it.
class DcpNames {
 public:
  struct Name {
    std::string_view fqn;
    pickle::Ref ref{};        ///< The text in the document.
    std::uint32_t entry = 0;  ///< Index in state_dict_metadata.
  };

  /// Reads the keys of state_dict_metadata. Throws Error (kCorrupt) for a key that comes twice.
  explicit DcpNames(const pickle::NodePairs& state_dict);

  [[nodiscard]] std::size_t size() const { return names_.size(); }
  [[nodiscard]] const Name& operator[](std::size_t id) const { return names_[id]; }
  /// The id of an entry of state_dict_metadata.
  [[nodiscard]] std::uint32_t id_of(std::size_t entry) const { return ids_[entry]; }

 private:
  std::vector<Name> names_;
  std::vector<std::uint32_t> ids_;
};

/// Finds the ids of the names in another dict of the metadata, one after another. Each thread needs its own.
class DcpNameFinder {
 public:
  explicit DcpNameFinder(const DcpNames& names) : names_(&names) {}

  /// The id of `name`, or nothing if state_dict_metadata does not have it. Throws Error (kCorrupt), which
  /// names `what`, if `name` is not a string.
  [[nodiscard]] std::optional<std::uint32_t> find(pickle::NodeRef name, std::string_view what);

 private:
  [[nodiscard]] std::uint32_t found_at(std::size_t entry);

  const DcpNames* names_;
  std::size_t last_entry_ = 0;
  std::unordered_map<std::string_view, std::uint32_t> table_;
};

}  // namespace accel::ckpt
