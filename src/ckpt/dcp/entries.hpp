#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ckpt/dcp/metadata.hpp"
#include "ckpt/dcp/names.hpp"

namespace accel::ckpt {

/// The entries of state_dict_metadata, without their places in files.
struct DcpEntries {
  std::vector<DcpTensor> tensors;         ///< The tensors, sorted by id; their chunks have no `where`.
  std::vector<std::uint32_t> tensor_ids;  ///< Ids of `tensors`.
  std::vector<DcpObject> objects;         ///< The objects, sorted by id, without `where`.
  std::vector<std::uint32_t> object_ids;  ///< Ids of `objects`.
};

/// Reads the entries. `planner_data` has the path of each entry in the state dict; it may be absent. Throws
/// Error (kCorrupt), also for a chunk that does not lie within its tensor.
[[nodiscard]] DcpEntries read_dcp_entries(const pickle::NodePairs& state_dict,
                                          const std::optional<pickle::NodeRef>& planner_data,
                                          const DcpNames& names, std::size_t input_bytes);

}  // namespace accel::ckpt
