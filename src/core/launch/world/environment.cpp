#include "core/launch/world/environment.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/text.hpp"
#include "core/config/names.hpp"

namespace accel::launch {

Variables torchrun_variables(const World& world, int local_rank, const std::filesystem::path& error_file) {
  const int rank = world.first_rank + local_rank;
  return {
      {"RANK", fmt::format("{}", rank)},
      {"LOCAL_RANK", fmt::format("{}", local_rank)},
      {"WORLD_SIZE", fmt::format("{}", world.num_processes)},
      {"LOCAL_WORLD_SIZE", fmt::format("{}", world.local_ranks)},
      {"GROUP_RANK", fmt::format("{}", world.machine_rank)},
      {"GROUP_WORLD_SIZE", fmt::format("{}", world.num_machines)},
      {"ROLE_RANK", fmt::format("{}", rank)},
      {"ROLE_WORLD_SIZE", fmt::format("{}", world.num_processes)},
      {"ROLE_NAME", "default"},
      {"MASTER_ADDR", world.master_addr},
      {"MASTER_PORT", fmt::format("{}", world.master_port)},
      {"TORCHELASTIC_RESTART_COUNT", fmt::format("{}", world.restarts)},
      {"TORCHELASTIC_MAX_RESTARTS", fmt::format("{}", world.max_restarts)},
      {"TORCHELASTIC_RUN_ID", world.run_id},
      // Rank 0 hosts the store; with torchrun the agent does.
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
      {"TORCHELASTIC_ERROR_FILE", error_file.string()},
      {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
  };
}

namespace {

constexpr const char* kExpandable = "expandable_segments";

/// Adds the option to the options of torch's allocator that the environment has. torch takes those of the
/// first variable that is set. One that says what the option is to be decides.
void add_expandable_segments(Variables& variables, const Environment& environment) {
  const char* name = "PYTORCH_CUDA_ALLOC_CONF";
  if (!environment(name) && environment("PYTORCH_ALLOC_CONF")) name = "PYTORCH_ALLOC_CONF";
  const std::string theirs = environment(name).value_or("");
  if (theirs.find(kExpandable) != std::string::npos) return;
  variables[name] = fmt::format("{}{}{}:True", theirs, theirs.empty() ? "" : ",", kExpandable);
}

}  // namespace

Variables machine_variables(const config::LoadedConfig& loaded, int physical_cores,
                            const Environment& environment) {
  const config::LaunchConfig& launch = loaded.config.launch;
  Variables variables;
  if (!environment("TORCH_NCCL_ASYNC_ERROR_HANDLING"))
    variables.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  if (!environment("OMP_NUM_THREADS")) {
    const bool on_cpu = launch.use_cpu || loaded.config.fsdp.offload_params;
    const int threads = on_cpu ? std::max(1, physical_cores / launch.local_processes) : 1;
    variables["OMP_NUM_THREADS"] = fmt::format("{}", threads);
  }
  if (launch.expandable_segments && !launch.use_cpu) add_expandable_segments(variables, environment);
  const auto asked = loaded.settings.get<std::vector<std::string>>("gpu_ids");
  if (!launch.use_cpu && asked && *asked != std::vector<std::string>{"all"}) {
    // The numbers are indices into the visible devices, whose names may be anything.
    std::vector<std::string> names;
    const std::vector<std::string> visible = split(environment("CUDA_VISIBLE_DEVICES").value_or(""), ',');
    for (const int gpu : launch.gpu_ids) {
      const auto index = static_cast<std::size_t>(gpu);
      names.push_back(index < visible.size() ? visible[index] : fmt::format("{}", gpu));
    }
    variables["CUDA_VISIBLE_DEVICES"] = fmt::format("{}", fmt::join(names, ","));
  }
  return variables;
}

Variables worker_variables(const Environment& environment) {
  for (const char* name : {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"}) {
    if (environment(name)) return {};
  }
  const std::string theirs = environment("GLIBC_TUNABLES").value_or("");
  if (theirs.find("glibc.malloc.") != std::string::npos) return {};
  // Larger blocks are mapped by themselves; in the heap they would leave holes (docs/design/015). Where large
  // pages are off, hugetlb=1 has no effect.
  const std::string ours =
      "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4194304:glibc.malloc.trim_threshold=1099511627776";
  return {{"GLIBC_TUNABLES", theirs.empty() ? ours : theirs + ":" + ours}};
}

}  // namespace accel::launch
