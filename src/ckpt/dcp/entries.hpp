#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ckpt/dcp/metadata.hpp"
#include "ckpt/dcp/names.hpp"

namespace accel::ckpt {

/// state_dict_metadata: what there is, without its places in files.
struct DcpEntries {
  std::vector<DcpTensor> tensors;         ///< In the order of the ids, their chunks without `where`.
  std::vector<std::uint32_t> tensor_ids;  ///< Of each.
  std::vector<DcpObject> objects;         ///< In the order of the ids, without `where`.
  std::vector<std::uint32_t> object_ids;  ///< Of each.
};

/// Takes the entries apart. `planner_data` says under which keys each lay in the state dict; it may be
/// missing. Throws Error (kCorrupt) also for a chunk that is not within its tensor.
[[nodiscard]] DcpEntries read_dcp_entries(const pickle::NodePairs& state_dict,
                                          const std::optional<pickle::NodeRef>& planner_data,
                                          const DcpNames& names, std::size_t input_bytes);

}  // namespace accel::ckpt
