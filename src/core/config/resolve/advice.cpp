#include "core/config/resolve/advice.hpp"

#include "core/config/mesh.hpp"

namespace accel::config {

// Accelerate's default for version 1 is NO_PREFETCH, although torch's own is BACKWARD_PRE: torch does not
// recommend backward without it (BackwardPrefetch in torch/distributed/fsdp/api.py). In forward a GPU always
// gathers ahead (load_config.cpp), and CPU ranks have no second engine that could gather meanwhile.
std::vector<std::string> advice_for(const LoadedConfig& loaded) {
  const Config& config = loaded.config;
  const bool gathers_in_backward = config.training.has_value() && !config.training->only_evaluates &&
                                   config.distributed_type == DistributedType::kFsdp &&
                                   config.fsdp.reshard_after_forward && mesh_of(config).shards() > 1;
  if (!gathers_in_backward || config.launch.use_cpu || config.fsdp.backward_prefetch ||
      loaded.settings.has("fsdp_config.backward_prefetch"))
    return {};
  return {
      "'fsdp_config.backward_prefetch' is NO_PREFETCH, the default of FSDP version 1: in backward the GPU "
      "waits for the gather of each unit; BACKWARD_PRE gathers it while the unit behind it computes, for the "
      "memory of one more unit, which accel plan shows"};
}

}  // namespace accel::config
