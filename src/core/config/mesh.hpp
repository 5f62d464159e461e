#pragma once

#include "core/config/config.hpp"
#include "ranks/mesh.hpp"

namespace accel::config {

/// The mesh of `world_size` ranks. Ranks that the sizes in the configuration do not account for are shards.
[[nodiscard]] inline Mesh mesh_of(const FsdpConfig& fsdp, int world_size) {
  const int beside = fsdp.replicate_size * fsdp.sequence_size * fsdp.tp_size;
  return {fsdp.replicate_size, world_size / beside, fsdp.sequence_size, fsdp.tp_size};
}
[[nodiscard]] inline Mesh mesh_of(const Config& config) {
  return mesh_of(config.fsdp, config.launch.num_processes);
}

}  // namespace accel::config
