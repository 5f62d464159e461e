#include <fmt/format.h>

#include "base/error.hpp"
#include "core/config/names.hpp"
#include "core/config/resolve/resolve.hpp"

namespace accel::config {
namespace {

constexpr std::string_view kHook = "training.ddp.comm_hook";
constexpr std::string_view kWrapper = "training.ddp.comm_wrapper";
constexpr std::string_view kOptions = "training.ddp.comm_state_option";
constexpr std::string_view kStart = "training.ddp.comm_state_option.start_powerSGD_iter";

void check_power_sgd(const PowerSgdConfig& options, const Settings& settings) {
  if ((options.use_error_feedback || options.warm_start) && options.start_iter <= 1) {
    throw Error(ErrorKind::kUsage, fmt::format("{}'{}: {}' must be at least 2 with use_error_feedback or "
                                               "warm_start, as in torch",
                                               settings.where(kStart), kStart, options.start_iter))
        .hint("raise it, or set both of them to false");
  }
}

/// Whether the hook applies; false only for a plan with one process. Otherwise it is an Error.
bool suits(const Config& config, const Settings& settings, const ConfigRequest& request, CommHookType hook) {
  const std::string asked = fmt::format("{}'{}: {}'", settings.where(kHook), kHook, name_of(hook));
  if (config.distributed_type == DistributedType::kFsdp) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{} is for data parallelism, and 'distributed_type' is FSDP", asked))
        .hint(
            "set distributed_type: MULTI_CPU or MULTI_GPU, or drop it: FSDP reduces gradients in the dtype "
            "of mixed_precision, or of fsdp_reduce_dtype");
  }
  if (config.launch.num_processes > 1) return true;
  if (request.only_plans) return false;
  throw Error(ErrorKind::kUsage, fmt::format("{} is for several processes, and this run has one", asked))
      .hint("set num_processes, or drop it: one process has no gradients to reduce");
}

}  // namespace

void resolve_ddp(Config& config, const Settings& settings, const ConfigRequest& request,
                 std::vector<std::string>& warnings) {
  DdpConfig& ddp = config.training->ddp;
  if (ddp.comm_hook == CommHookType::kNo && ddp.comm_wrapper != CommHookType::kNo) {
    warnings.push_back(fmt::format("{}'{}: {}' has no effect without '{}'", settings.where(kWrapper),
                                   kWrapper, name_of(ddp.comm_wrapper), kHook));
  }
  if (ddp.comm_hook == CommHookType::kPowerSgd) {
    check_power_sgd(ddp.power_sgd, settings);
  } else {
    ddp.power_sgd = {};
    if (settings.has(kOptions)) {
      warnings.push_back(fmt::format("{}'{}' has no effect without '{}: power_sgd'", settings.where(kOptions),
                                     kOptions, kHook));
    }
  }
  const bool hooks = ddp.comm_hook != CommHookType::kNo && suits(config, settings, request, ddp.comm_hook);
  if (!hooks) ddp = {};
}

}  // namespace accel::config
