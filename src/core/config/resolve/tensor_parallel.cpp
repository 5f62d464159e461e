#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "base/error.hpp"
#include "core/config/names.hpp"
#include "core/config/resolve/resolve.hpp"

namespace accel::config {
namespace {

constexpr std::string_view kTensorParallelKey = "parallelism_config.tp_size";

/// The optimizers that need whole matrices, or blocks that a part of a parameter may cut.
constexpr auto kWholeMatrices = std::to_array<std::string_view>({"muon", "adafactor", "adamw8bit"});

bool needs_whole_matrices(const std::string& type) {
  return std::find(kWholeMatrices.begin(), kWholeMatrices.end(), type) != kWholeMatrices.end();
}

[[noreturn]] void refuse(const Settings& settings, std::string_view key, const std::string& what,
                         const char* hint) {
  throw Error(ErrorKind::kUsage, fmt::format("{}{} is not supported with '{}' above 1 yet",
                                             settings.where(key), what, kTensorParallelKey))
      .hint(hint);
}

void refuse_optimizer(const Settings& settings, std::string_view key, const std::string& type) {
  if (!needs_whole_matrices(type)) return;
  refuse(settings, key, fmt::format("'{}: {}', which needs whole parameters,", key, type),
         "choose an optimizer that treats each element by itself, such as adamw, lion or sgd");
}

}  // namespace

void validate_tensor_parallel(const Config& config, const Settings& settings) {
  if (config.fsdp.tp_size == 1) return;
  const TrainingConfig& training = *config.training;
  if (config.has_float8()) {
    refuse(settings, "mixed_precision", "'mixed_precision: fp8'", "set mixed_precision: bf16, or tp_size: 1");
  }
  refuse_optimizer(settings, "training.optimizer.type", training.optimizer.type);
  for (const ParameterGroup& group : training.optimizer.groups)
    refuse_optimizer(settings, "training.optimizer.groups", group.optimizer);
  if (training.ddp.comm_hook == CommHookType::kPowerSgd) {
    refuse(settings, "training.ddp.comm_hook", "'training.ddp.comm_hook: power_sgd'",
           "take another communication hook, or none");
  }
  if (training.model.broadcast_from_rank0) {
    refuse(settings, "training.model.broadcast_from_rank0", "'training.model.broadcast_from_rank0: true'",
           "put the model where every machine sees it");
  }
  if (training.checkpoint.adapter_only) {
    refuse(settings, "training.checkpoint.adapter_only", "'training.checkpoint.adapter_only: true'",
           "train an adapter without tensor parallelism");
  }
}

}  // namespace accel::config
