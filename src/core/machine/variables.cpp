#include "core/machine/variables.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include "base/text.hpp"
#include "core/config/keys/keys.hpp"

namespace accel::machine {
namespace {

constexpr std::string_view kNotShown = "(set, not shown)";

/// Variables that begin so are named, whether their values are shown or not.
constexpr auto kFamilies =
    std::to_array<std::string_view>({"ACCEL_",  "ACCELERATE_", "FSDP_",          "PARALLELISM_CONFIG_",
                                     "NCCL_",   "TORCH_NCCL_", "TORCHELASTIC_",  "GLOO_",
                                     "OMP_",    "KMP_",        "GOMP_",          "MKL_",
                                     "ONEDNN_", "DNNL_",       "SLURM_",         "OMPI_COMM_",
                                     "PMI_",    "CUDA_",       "CUBLAS_",        "PYTORCH_",
                                     "MASTER_", "PET_",        "JOB_COMPLETION_"});

// Names that begin with a family of names are written once with the names behind it.
struct Group {
  std::string_view family;
  std::string_view names;  ///< Separated by single blanks.
};

/// The variables whose values are shown. None of them has a place for a secret.
constexpr auto kShown = std::to_array<Group>({
    {"",
     "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK NODE_RANK MASTER_ADDR MASTER_PORT "
     "MPI_LOCALNRANKS "
     "MPI_LOCALRANKID PMI_RANK PMI_SIZE JOB_COMPLETION_INDEX NO_COLOR TMPDIR LD_LIBRARY_PATH LD_PRELOAD "
     "GLIBC_TUNABLES ATEN_CPU_CAPABILITY NVIDIA_TF32_OVERRIDE NVIDIA_VISIBLE_DEVICES "
     "NVIDIA_DRIVER_CAPABILITIES TP_SOCKET_IFNAME OPENBLAS_NUM_THREADS SLURMD_NODENAME"},
    {"ACCEL_", "WORKER CONFIG_FILE MAX_METADATA FLIGHT_RECORD"},
    {"PET_", "NNODES NODE_RANK NPROC_PER_NODE MASTER_ADDR MASTER_PORT MAX_RESTARTS"},
    {"ACCELERATE_", "USE_FSDP USE_DEEPSPEED USE_MEGATRON_LM USE_PARALLELISM_CONFIG DYNAMO_BACKEND LOG_LEVEL"},
    {"NCCL_",
     "ALGO PROTO DEBUG DEBUG_SUBSYS DEBUG_FILE P2P_DISABLE P2P_LEVEL SHM_DISABLE IB_DISABLE IB_HCA "
     "IB_TIMEOUT IB_RETRY_CNT IB_GID_INDEX IB_SL IB_TC IB_QPS_PER_CONNECTION IB_PCI_RELAXED_ORDERING "
     "IB_ADAPTIVE_ROUTING NET NET_PLUGIN NET_GDR_LEVEL NET_GDR_READ SOCKET_IFNAME SOCKET_FAMILY "
     "SOCKET_NTHREADS OOB_NET_IFNAME NSOCKS_PERTHREAD CROSS_NIC BUFFSIZE NTHREADS MAX_NCHANNELS "
     "MIN_NCHANNELS "
     "MAX_CTAS MIN_CTAS LAUNCH_MODE COLLNET_ENABLE NVLS_ENABLE GRAPH_REGISTER CUMEM_ENABLE DMABUF_ENABLE "
     "TOPO_FILE TOPO_DUMP_FILE GRAPH_FILE CONF_FILE COMM_ID ASYNC_ERROR_HANDLING BLOCKING_WAIT RAS_ENABLE"},
    {"TORCH_NCCL_",
     "ASYNC_ERROR_HANDLING BLOCKING_WAIT HIGH_PRIORITY DUMP_ON_TIMEOUT DESYNC_DEBUG ENABLE_TIMING "
     "ENABLE_MONITORING HEARTBEAT_TIMEOUT_SEC TRACE_BUFFER_SIZE AVOID_RECORD_STREAMS NAN_CHECK "
     "DEBUG_INFO_TEMP_FILE"},
    {"TORCH_", "CPP_LOG_LEVEL DISTRIBUTED_DEBUG SHOW_CPP_STACKTRACES ALLOW_TF32_CUBLAS_OVERRIDE"},
    {"TORCHELASTIC_", "RESTART_COUNT MAX_RESTARTS ERROR_FILE"},
    {"PYTORCH_", "CUDA_ALLOC_CONF ALLOC_CONF NO_CUDA_MEMORY_CACHING"},
    {"GLOO_", "DEVICE_TRANSPORT SOCKET_IFNAME SOCKET_FAMILY"},
    {"OMP_", "NUM_THREADS PROC_BIND PLACES SCHEDULE DYNAMIC WAIT_POLICY THREAD_LIMIT STACKSIZE"},
    {"KMP_", "AFFINITY BLOCKTIME LIBRARY HW_SUBSET"},
    {"GOMP_", "CPU_AFFINITY SPINCOUNT"},
    {"MKL_", "NUM_THREADS DYNAMIC ENABLE_INSTRUCTIONS DEBUG_CPU_TYPE THREADING_LAYER CBWR VERBOSE"},
    {"ONEDNN_", "MAX_CPU_ISA VERBOSE DEFAULT_FPMATH_MODE"},
    {"DNNL_", "MAX_CPU_ISA VERBOSE DEFAULT_FPMATH_MODE"},
    {"CUDA_",
     "VISIBLE_DEVICES LAUNCH_BLOCKING DEVICE_ORDER DEVICE_MAX_CONNECTIONS MODULE_LOADING HOME PATH "
     "CACHE_PATH MPS_PIPE_DIRECTORY VERSION"},
    {"CUBLAS_", "WORKSPACE_CONFIG"},
    {"OMPI_COMM_WORLD_", "RANK SIZE LOCAL_RANK LOCAL_SIZE NODE_RANK"},
    {"SLURM_",
     "JOB_ID ARRAY_JOB_ID ARRAY_TASK_ID STEP_ID NNODES JOB_NUM_NODES STEP_NUM_NODES NTASKS STEP_NUM_TASKS "
     "NODEID "
     "PROCID LOCALID TASKS_PER_NODE NTASKS_PER_NODE CPUS_PER_TASK CPUS_ON_NODE JOB_CPUS_PER_NODE JOB_GPUS "
     "STEP_GPUS GPUS GPUS_ON_NODE GPUS_PER_NODE GPUS_PER_TASK MEM_PER_NODE MEM_PER_CPU MEM_PER_GPU NODELIST "
     "JOB_NODELIST STEP_NODELIST LAUNCH_NODE_IPADDR SRUN_COMM_HOST SUBMIT_DIR RESTART_COUNT CPU_BIND_TYPE "
     "DISTRIBUTION JOB_END_TIME"},
});

bool is_passed_by_accelerate(std::string_view name) {
  if (name.empty()) return false;
  for (const auto table : config::key_tables()) {
    if (std::any_of(table.begin(), table.end(), [&](const config::Key& key) { return key.variable == name; }))
      return true;
  }
  return false;
}

bool is_shown(std::string_view name) {
  return is_passed_by_accelerate(name) || std::any_of(kShown.begin(), kShown.end(), [&](const Group& group) {
           return name.starts_with(group.family) && has_word(group.names, name.substr(group.family.size()));
         });
}

/// Whether an unknown variable is named. The name must have the form that names of variables have.
bool is_of_a_family(std::string_view name) {
  constexpr std::size_t kLongest = 48;
  return name.size() <= kLongest &&
         name.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == std::string_view::npos &&
         std::any_of(kFamilies.begin(), kFamilies.end(),
                     [&](std::string_view family) { return name.starts_with(family); });
}

}  // namespace

std::map<std::string, std::string> relevant_variables(const std::vector<std::string>& environment) {
  std::map<std::string, std::string> found;
  for (const std::string& entry : environment) {
    const std::size_t equals = entry.find('=');
    if (equals == std::string::npos) continue;
    const std::string name = entry.substr(0, equals);
    const std::string value = entry.substr(equals + 1);
    if (is_shown(name)) {
      found[name] = value;
    } else if (is_of_a_family(name)) {
      found[name] = value.empty() ? "" : std::string(kNotShown);
    }
  }
  return found;
}

}  // namespace accel::machine
