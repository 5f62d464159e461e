#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "base/error.hpp"
#include "core/config/mesh.hpp"
#include "core/config/names.hpp"
#include "core/config/resolve/resolve.hpp"

namespace accel::config {
namespace {

constexpr std::string_view kReplicas = "parallelism_config.dp_replicate_size";
constexpr std::string_view kShards = "parallelism_config.dp_shard_size";
constexpr std::string_view kSequence = "parallelism_config.sp_size";
constexpr std::string_view kContext = "parallelism_config.cp_size";
constexpr std::string_view kTensors = "parallelism_config.tp_size";

bool replicates(DistributedType type) {
  return type == DistributedType::kMultiCpu || type == DistributedType::kMultiGpu;
}

/// Plain data parallelism. A unit is as large as a bucket of DDP, so gradients are reduced in such pieces.
FsdpConfig data_parallel() {
  constexpr std::int64_t kBucketBytes = 25 << 20;
  FsdpConfig fsdp;
  fsdp.reshard_after_forward = false;
  fsdp.forward_prefetch = false;
  fsdp.backward_prefetch = false;
  fsdp.auto_wrap_policy = WrapPolicy::kSize;
  fsdp.min_num_params = kBucketBytes / static_cast<std::int64_t>(sizeof(float));
  return fsdp;
}

/// What beside the sizes of data parallelism makes up the number of processes, for errors.
std::string beside_tensors(const Settings& settings) {
  const std::int64_t tensors = settings.get<std::int64_t>(kTensors).value_or(1);
  return tensors == 1 ? "" : fmt::format(" beside '{}: {}'", kTensors, tensors);
}

/// The number of processes without those of tensor parallelism.
int processes_beside_tensors(const Config& config, const Settings& settings) {
  const int processes = config.launch.num_processes;
  const int tensors = config.fsdp.tp_size;
  if (processes % tensors == 0) return processes / tensors;
  throw Error(ErrorKind::kUsage, fmt::format("{}'{}: {}' contradicts {} process{}", settings.where(kTensors),
                                             kTensors, tensors, processes, processes == 1 ? "" : "es"))
      .hint("each part of a parameter needs a process: num_processes must be a multiple of tp_size");
}

/// The number of replicas that parallelism_config asks for, of the `processes` that train on different
/// batches. Sizes of 1 by 1 ask for nothing, as in Accelerate.
std::optional<int> asked_replicas(const Settings& settings, int processes, int sequence) {
  const auto replicas = settings.get<std::int64_t>(kReplicas);
  const auto shards = settings.get<std::int64_t>(kShards);
  if (replicas.value_or(1) == 1 && shards.value_or(1) == 1) return std::nullopt;
  const std::string have = sequence == 1 ? fmt::format("{} processes{}", processes, beside_tensors(settings))
                                         : fmt::format("{} processes of which {} share a sequence",
                                                       processes * sequence, sequence);
  // One size alone implies the other.
  if (replicas && shards &&
      (*replicas > processes || *shards > processes || *replicas * *shards != processes)) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{}'{}: {}' times '{}: {}' contradicts {}", settings.where(kReplicas), kReplicas,
                            *replicas, kShards, *shards, have));
  }
  const std::string_view key = replicas ? kReplicas : kShards;
  const std::int64_t size = replicas ? *replicas : *shards;
  if (processes % size != 0) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{}'{}: {}' contradicts {}", settings.where(key), key, size, have));
  }
  return static_cast<int>(replicas ? size : processes / size);
}

/// Tensor parallelism beside FSDP needs its version 2, as in Accelerate.
void require_version_2(const FsdpConfig& fsdp, const Settings& settings) {
  if (fsdp.tp_size == 1 || fsdp.version == 2) return;
  throw Error(ErrorKind::kUsage, fmt::format("{}'{}: {}' contradicts version 1 of FSDP",
                                             settings.where(kTensors), kTensors, fsdp.tp_size))
      .hint("set fsdp_version: 2 in fsdp_config, or distributed_type: MULTI_GPU or MULTI_CPU");
}

[[noreturn]] void contradiction(const Settings& settings, int processes, int replicas,
                                const std::string& what, const char* hint) {
  const std::string_view key = settings.get<std::int64_t>(kReplicas) ? kReplicas : kShards;
  throw Error(ErrorKind::kUsage,
              fmt::format("{}'{}: {}' makes a mesh of {} x {}, which contradicts {}", settings.where(key),
                          key, *settings.get<std::int64_t>(key), replicas, processes / replicas, what))
      .hint(hint);
}

/// The number of ranks that share a sequence. Context parallelism cuts sequences as well, and passes keys and
/// values around a ring.
int sequence_size(const Settings& settings, const Config& config, std::vector<std::string>& warnings) {
  const std::int64_t asked = settings.get<std::int64_t>(kSequence).value_or(1);
  const std::int64_t context = settings.get<std::int64_t>(kContext).value_or(1);
  if (asked > 1 && context > 1) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{}'{}: {}' contradicts '{}: {}', as in Accelerate", settings.where(kSequence),
                            kSequence, asked, kContext, context))
        .hint("keep one of the two");
  }
  const std::string_view key = context > 1 ? kContext : kSequence;
  const std::int64_t size = std::max(asked, context);
  if (size == 1) return 1;
  const int processes = config.launch.num_processes;
  const std::string set = fmt::format("{}'{}: {}'", settings.where(key), key, size);
  if (size > processes || processes % size != 0)
    throw Error(ErrorKind::kUsage, fmt::format("{} contradicts {} processes", set, processes));
  const bool is_sharded = config.distributed_type == DistributedType::kFsdp &&
                          (config.fsdp.version == 2 || strategy_name(settings).spread != Spread::kNone);
  if (!is_sharded) {
    throw Error(ErrorKind::kUsage, fmt::format("{} needs the model to be sharded", set))
        .hint("use distributed_type: FSDP, with a sharding_strategy other than NO_SHARD in version 1");
  }
  if (context > 1) {
    warnings.push_back(fmt::format("{} runs as '{}: {}': attention is cut by its heads, and there is no ring",
                                   set, kSequence, size));
  }
  return static_cast<int>(size);
}

/// `processes` are those that train on different batches.
int replicas_of_version_1(const Config& config, const Settings& settings, std::optional<int> asked,
                          int processes) {
  const StrategyName strategy = strategy_name(settings);
  switch (strategy.spread) {
    case Spread::kAll:
      if (asked.value_or(1) == 1) return 1;
      contradiction(settings, processes, *asked, fmt::format("{} of FSDP version 1", strategy.name),
                    "use sharding_strategy: HYBRID_SHARD, or fsdp_version: 2");
    case Spread::kNone:
      if (asked.value_or(processes) == processes) return processes;
      contradiction(settings, processes, *asked, fmt::format("{} of FSDP version 1", strategy.name),
                    "use sharding_strategy: HYBRID_SHARD, or fsdp_version: 2");
    case Spread::kMachine:
      break;
  }
  if (asked) return *asked;
  if (processes % config.launch.num_machines != 0) {
    throw Error(ErrorKind::kUsage, fmt::format("{}{}: {} processes on {} machines are not as many on each",
                                               settings.where("num_processes"), strategy.name, processes,
                                               config.launch.num_machines));
  }
  return config.launch.num_machines;
}

/// Checks and finalizes reshard_size, as fully_shard treats an integer.
void finalize_reshard(FsdpConfig& fsdp, const Settings& settings, int shards) {
  static constexpr std::string_view kReshard = "fsdp_config.reshard_after_forward";
  if (fsdp.reshard_size == 0) return;
  if (shards % fsdp.reshard_size != 0) {
    std::vector<int> factors;
    for (int factor = 2; factor <= shards; ++factor) {
      if (shards % factor == 0) factors.push_back(factor);
    }
    throw Error(ErrorKind::kUsage,
                fmt::format("{}'{}: {}' does not divide the {} {} that share each parameter",
                            settings.where(kReshard), kReshard, fsdp.reshard_size, shards,
                            shards == 1 ? "rank" : "ranks"))
        .hint(factors.empty() ? "use true or false"
                              : fmt::format("true, false, or one of {}", fmt::join(factors, ", ")));
  }
  if (fsdp.reshard_size == shards) fsdp.reshard_size = 0;
}

}  // namespace

void resolve_mesh(Config& config, const Settings& settings, std::vector<std::string>& warnings) {
  const int tensors = config.fsdp.tp_size;
  const int sequence = sequence_size(settings, config, warnings);
  if (sequence > 1 && tensors > 1) {
    throw Error(ErrorKind::kUsage, fmt::format("{}'{}: {}' is not supported beside sequence parallelism yet",
                                               settings.where(kTensors), kTensors, tensors))
        .hint("set tp_size to 1, or sp_size and cp_size");
  }
  const int processes = processes_beside_tensors(config, settings) / sequence;
  const std::optional<int> asked = asked_replicas(settings, processes, sequence);
  if (replicates(config.distributed_type)) {
    if (asked.value_or(processes) != processes) {
      contradiction(settings, processes, *asked,
                    fmt::format("'distributed_type: {}'", name_of(config.distributed_type)),
                    "use distributed_type: FSDP");
    }
    if (settings.has("fsdp_config")) {
      warnings.push_back(fmt::format("{}'fsdp_config' has no effect with 'distributed_type: {}'",
                                     settings.where("fsdp_config"), name_of(config.distributed_type)));
    }
    config.fsdp = data_parallel();
    config.fsdp.replicate_size = processes;
    config.fsdp.tp_size = tensors;
    return;
  }
  FsdpConfig& fsdp = config.fsdp;
  fsdp.sequence_size = sequence;
  require_version_2(fsdp, settings);
  fsdp.replicate_size =
      fsdp.version == 1 ? replicas_of_version_1(config, settings, asked, processes) : asked.value_or(1);
  finalize_reshard(fsdp, settings, mesh_of(config).shards());
}

}  // namespace accel::config
