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

CommHookType type_at(const Settings& settings, std::string_view path) {
  const auto name = settings.get<std::string>(path);
  return name ? *enum_named<CommHookType>(*name) : CommHookType::kNo;
}

PowerSgdConfig power_sgd_of(const Settings& settings) {
  PowerSgdConfig options;
  const auto read = [&](const char* name, auto& value, auto as) {
    using Stored = decltype(as);
    if (const auto set = settings.get<Stored>(fmt::format("{}.{}", kOptions, name)))
      value = static_cast<std::remove_reference_t<decltype(value)>>(*set);
  };
  read("matrix_approximation_rank", options.matrix_approximation_rank, std::int64_t{});
  read("start_powerSGD_iter", options.start_iter, std::int64_t{});
  read("min_compression_rate", options.min_compression_rate, double{});
  read("use_error_feedback", options.use_error_feedback, bool{});
  read("warm_start", options.warm_start, bool{});
  read("orthogonalization_epsilon", options.orthogonalization_epsilon, double{});
  read("random_seed", options.random_seed, std::int64_t{});
  if ((options.use_error_feedback || options.warm_start) && options.start_iter <= 1) {
    throw Error(ErrorKind::kUsage, fmt::format("{}'{}: {}' must be at least 2 with use_error_feedback or "
                                               "warm_start, as in torch",
                                               settings.where(kStart), kStart, options.start_iter))
        .hint("raise it, or set both of them to false");
  }
  return options;
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

DdpConfig resolve_ddp(const Config& config, const Settings& settings, const ConfigRequest& request,
                      std::vector<std::string>& warnings) {
  DdpConfig ddp;
  ddp.comm_hook = type_at(settings, kHook);
  ddp.comm_wrapper = type_at(settings, kWrapper);
  if (ddp.comm_hook == CommHookType::kNo && ddp.comm_wrapper != CommHookType::kNo) {
    warnings.push_back(fmt::format("{}'{}: {}' has no effect without '{}'", settings.where(kWrapper),
                                   kWrapper, name_of(ddp.comm_wrapper), kHook));
  }
  if (ddp.comm_hook == CommHookType::kPowerSgd) {
    ddp.power_sgd = power_sgd_of(settings);
  } else if (settings.has(kOptions)) {
    warnings.push_back(fmt::format("{}'{}' has no effect without '{}: power_sgd'", settings.where(kOptions),
                                   kOptions, kHook));
  }
  const bool hooks = ddp.comm_hook != CommHookType::kNo && suits(config, settings, request, ddp.comm_hook);
  return hooks ? ddp : DdpConfig{};
}

}  // namespace accel::config
