#include "core/machine/variables.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include "base/text.hpp"
#include "core/config/keys/keys.hpp"
#include "core/machine/value_shape.hpp"

namespace accel::machine {
namespace {

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
  std::string_view names;  ///< Separated by blanks.
};

/// Variables whose values are Shape::kPlain.
constexpr auto kPlainNames = std::to_array<Group>({
    {"",
     "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE "
     "NODE_RANK MASTER_PORT MPI_LOCALNRANKS MPI_LOCALRANKID PMI_RANK PMI_SIZE NO_COLOR GLIBC_TUNABLES "
     "ATEN_CPU_CAPABILITY NVIDIA_TF32_OVERRIDE NVIDIA_DRIVER_CAPABILITIES OPENBLAS_NUM_THREADS"},
    {"ACCEL_", "MAX_METADATA"},
    {"JOB_COMPLETION_", "INDEX"},
    {"PET_", "NNODES NODE_RANK NPROC_PER_NODE MASTER_PORT MAX_RESTARTS"},
    {"ACCELERATE_",
     "USE_FSDP USE_DEEPSPEED USE_MEGATRON_LM USE_PARALLELISM_CONFIG DYNAMO_BACKEND DOWNCAST_BF16 USE_XPU "
     "LOG_LEVEL FP8_OVERRIDE_FPROP FP8_OVERRIDE_DGRAD FP8_OVERRIDE_WGRAD"},
    {"NCCL_",
     "ALGO PROTO DEBUG DEBUG_SUBSYS P2P_DISABLE P2P_LEVEL P2P_DIRECT_DISABLE P2P_NET_CHUNKSIZE "
     "P2P_USE_CUDA_MEMCPY "
     "SHM_DISABLE SHM_USE_CUDA_MEMCPY SHM_LOCALITY IB_DISABLE IB_TIMEOUT IB_RETRY_CNT IB_GID_INDEX IB_SL "
     "IB_TC "
     "IB_QPS_PER_CONNECTION IB_SPLIT_DATA_ON_QPS IB_PCI_RELAXED_ORDERING IB_ADAPTIVE_ROUTING IB_AR_THRESHOLD "
     "IB_CUDA_SUPPORT IB_ROCE_VERSION_NUM IB_FIFO_TC IB_MERGE_NICS IB_RETURN_ASYNC_EVENTS NET NET_GDR_LEVEL "
     "NET_GDR_READ NET_GDR_C2C NET_SHARED_BUFFERS NET_SHARED_COMMS NET_FORCE_FLUSH SOCKET_FAMILY "
     "SOCKET_NTHREADS SOCKET_RETRY_CNT NSOCKS_PERTHREAD CROSS_NIC BUFFSIZE NTHREADS NCHANNELS MAX_NCHANNELS "
     "MIN_NCHANNELS MAX_CTAS MIN_CTAS CHECKS_DISABLE CHECK_POINTERS LAUNCH_MODE SET_THREAD_NAME "
     "SET_STACK_SIZE COLLNET_ENABLE COLLNET_NODE_THRESHOLD NVLS_ENABLE NVLS_NCHANNELS GRAPH_MIXED_SUPPORT "
     "GRAPH_REGISTER COMM_BLOCKING CGA_CLUSTER_SIZE CUMEM_ENABLE CUMEM_HOST_ENABLE "
     "RUNTIME_CONNECT WORK_FIFO_DEPTH IGNORE_CPU_AFFINITY IGNORE_DISABLED_P2P SINGLE_RING_THRESHOLD "
     "LL_THRESHOLD TREE_THRESHOLD LOCAL_REGISTER DMABUF_ENABLE GDRCOPY_ENABLE PROGRESS_APPENDOP_FREQ "
     "ASYNC_ERROR_HANDLING BLOCKING_WAIT TOPO_DUMP_FILE_RANK WARN_ENABLE_DEBUG_INFO MNNVL_ENABLE RAS_ENABLE "
     "OOB_NET_ENABLE"},
    {"TORCH_NCCL_",
     "ASYNC_ERROR_HANDLING BLOCKING_WAIT HIGH_PRIORITY DUMP_ON_TIMEOUT DESYNC_DEBUG ENABLE_TIMING "
     "ENABLE_MONITORING HEARTBEAT_TIMEOUT_SEC TRACE_BUFFER_SIZE TRACE_CPP_STACK COORD_CHECK_MILSEC "
     "WAIT_TIMEOUT_DUMP_MILSEC AVOID_RECORD_STREAMS USE_COMM_NONBLOCKING NONBLOCKING_TIMEOUT NAN_CHECK "
     "PROPAGATE_ERROR CUDA_EVENT_CACHE BCAST_UNIQUEID RETHROW_CUDA_ERRORS RANKS_PER_ROOT "
     "USE_TENSOR_REGISTER_ALLOCATOR_HOOK SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING "
     "LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN"},
    {"TORCH_", "CPP_LOG_LEVEL DISTRIBUTED_DEBUG SHOW_CPP_STACKTRACES ALLOW_TF32_CUBLAS_OVERRIDE"},
    {"TORCHELASTIC_", "RESTART_COUNT MAX_RESTARTS USE_AGENT_STORE SIGNALS_TO_HANDLE ENABLE_FILE_TIMER"},
    {"PYTORCH_", "CUDA_ALLOC_CONF ALLOC_CONF NO_CUDA_MEMORY_CACHING NVML_BASED_CUDA_CHECK"},
    {"GLOO_", "DEVICE_TRANSPORT SOCKET_FAMILY"},
    {"OMP_",
     "NUM_THREADS PROC_BIND PLACES SCHEDULE DYNAMIC WAIT_POLICY MAX_ACTIVE_LEVELS THREAD_LIMIT STACKSIZE "
     "DISPLAY_ENV DISPLAY_AFFINITY CANCELLATION TARGET_OFFLOAD NESTED"},
    {"KMP_", "AFFINITY BLOCKTIME SETTINGS LIBRARY STACKSIZE HW_SUBSET TPAUSE"},
    {"GOMP_", "CPU_AFFINITY SPINCOUNT STACKSIZE"},
    {"MKL_",
     "NUM_THREADS DYNAMIC ENABLE_INSTRUCTIONS DEBUG_CPU_TYPE THREADING_LAYER INTERFACE_LAYER CBWR VERBOSE "
     "DOMAIN_NUM_THREADS SERVICE_FORCE_INTEL"},
    {"ONEDNN_", "MAX_CPU_ISA VERBOSE CPU_ISA_HINTS PRIMITIVE_CACHE_CAPACITY DEFAULT_FPMATH_MODE JIT_DUMP"},
    {"DNNL_", "MAX_CPU_ISA VERBOSE CPU_ISA_HINTS PRIMITIVE_CACHE_CAPACITY DEFAULT_FPMATH_MODE"},
    {"CUDA_",
     "LAUNCH_BLOCKING DEVICE_ORDER DEVICE_MAX_CONNECTIONS MODULE_LOADING MODULE_DATA_LOADING CACHE_DISABLE "
     "CACHE_MAXSIZE FORCE_PTX_JIT DISABLE_PTX_JIT MPS_ACTIVE_THREAD_PERCENTAGE ENABLE_COREDUMP_ON_EXCEPTION "
     "AUTO_BOOST SCALE_LAUNCH_QUEUES VERSION TOOLKIT_VERSION"},
    {"CUBLAS_", "WORKSPACE_CONFIG"},
    {"OMPI_COMM_WORLD_", "RANK SIZE LOCAL_RANK LOCAL_SIZE NODE_RANK"},
    {"SLURM_",
     "JOB_ID JOBID ARRAY_JOB_ID ARRAY_TASK_ID ARRAY_TASK_COUNT ARRAY_TASK_MIN ARRAY_TASK_MAX STEP_ID STEPID "
     "NNODES JOB_NUM_NODES STEP_NUM_NODES NTASKS NPROCS STEP_NUM_TASKS NODEID PROCID LOCALID GTIDS "
     "TASKS_PER_NODE STEP_TASKS_PER_NODE NTASKS_PER_NODE NTASKS_PER_CORE NTASKS_PER_SOCKET NTASKS_PER_GPU "
     "CPUS_PER_TASK CPUS_PER_GPU CPUS_ON_NODE JOB_CPUS_PER_NODE GPUS GPUS_ON_NODE GPUS_PER_NODE "
     "GPUS_PER_TASK "
     "MEM_PER_NODE MEM_PER_CPU MEM_PER_GPU THREADS_PER_CORE CPU_BIND_TYPE CPU_BIND_VERBOSE MEM_BIND_TYPE "
     "GPU_BIND DISTRIBUTION JOB_START_TIME JOB_END_TIME RESTART_COUNT KILL_BAD_EXIT OVERCOMMIT "
     "SHARDS_ON_NODE "
     "TASK_PID PRIO_PROCESS MPI_TYPE HINT"},
});

struct Known {
  std::string_view name;
  Shape shape;
};

/// Variables whose values have another shape.
constexpr auto kKnown = std::to_array<Known>({
    {"ACCEL_WORKER", Shape::kPath},
    {"ACCEL_CONFIG_FILE", Shape::kPath},
    {"ACCEL_FLIGHT_RECORD", Shape::kPath},
    {"CUDA_VISIBLE_DEVICES", Shape::kDevices},
    {"NVIDIA_VISIBLE_DEVICES", Shape::kDevices},
    {"SLURM_JOB_GPUS", Shape::kDevices},
    {"SLURM_STEP_GPUS", Shape::kDevices},
    {"CUDA_HOME", Shape::kPath},
    {"CUDA_PATH", Shape::kPath},
    {"CUDA_CACHE_PATH", Shape::kPath},
    {"CUDA_MPS_PIPE_DIRECTORY", Shape::kPath},
    {"NCCL_DEBUG_FILE", Shape::kPath},
    {"NCCL_TOPO_FILE", Shape::kPath},
    {"NCCL_TOPO_DUMP_FILE", Shape::kPath},
    {"NCCL_GRAPH_FILE", Shape::kPath},
    {"NCCL_NET_PLUGIN", Shape::kPath},
    {"NCCL_CONF_FILE", Shape::kPath},
    {"NCCL_SOCKET_IFNAME", Shape::kInterfaces},
    {"NCCL_IB_HCA", Shape::kInterfaces},
    {"NCCL_OOB_NET_IFNAME", Shape::kInterfaces},
    {"GLOO_SOCKET_IFNAME", Shape::kInterfaces},
    {"TP_SOCKET_IFNAME", Shape::kInterfaces},
    {"NCCL_COMM_ID", Shape::kHost},
    {"MASTER_ADDR", Shape::kHost},
    {"PET_MASTER_ADDR", Shape::kHost},
    {"SLURM_LAUNCH_NODE_IPADDR", Shape::kHost},
    {"SLURM_SRUN_COMM_HOST", Shape::kHost},
    {"SLURMD_NODENAME", Shape::kHost},
    {"SLURM_NODELIST", Shape::kHosts},
    {"SLURM_JOB_NODELIST", Shape::kHosts},
    {"SLURM_STEP_NODELIST", Shape::kHosts},
    {"SLURM_SUBMIT_DIR", Shape::kPath},
    {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE", Shape::kPath},
    {"TORCHELASTIC_ERROR_FILE", Shape::kPath},
    {"LD_LIBRARY_PATH", Shape::kPaths},
    {"LD_PRELOAD", Shape::kPaths},
    {"TMPDIR", Shape::kPath},
    {"FSDP_TRANSFORMER_CLS_TO_WRAP", Shape::kClasses},
});

bool is_passed_by_accelerate(std::string_view name) {
  if (name.empty()) return false;
  for (const auto table : config::key_tables()) {
    if (std::any_of(table.begin(), table.end(), [&](const config::Key& key) { return key.variable == name; }))
      return true;
  }
  return false;
}

/// The shape that values of the variable have; absent if the variable is not known.
std::optional<Shape> shape_of(std::string_view name) {
  const auto* const known =
      std::find_if(kKnown.begin(), kKnown.end(), [&](const Known& row) { return row.name == name; });
  if (known != kKnown.end()) return known->shape;
  const bool is_plain = std::any_of(kPlainNames.begin(), kPlainNames.end(), [&](const Group& group) {
    return name.starts_with(group.family) && has_word(group.names, name.substr(group.family.size()));
  });
  return is_plain || is_passed_by_accelerate(name) ? std::optional(Shape::kPlain) : std::nullopt;
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
    if (const std::optional<Shape> shape = shape_of(name)) {
      found[name] = shown(value, *shape);
    } else if (is_of_a_family(name)) {
      found[name] = value.empty() ? "" : std::string(kNotShown);
    }
  }
  return found;
}

}  // namespace accel::machine
