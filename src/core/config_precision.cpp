#include <fmt/format.h>

#include "base/error.hpp"
#include "core/config_resolve.hpp"

namespace accel::core {
namespace {

constexpr std::string_view kPrecision = "mixed_precision";
constexpr std::string_view kReduce = "fsdp_config.reduce_dtype";

std::string torch_name(std::string_view name) {
  if (name == "bf16") return "bfloat16";
  return "float32";
}

}  // namespace

PrecisionConfig resolve_precision(const Config& config, const Settings& settings) {
  const auto reduce = settings.get<std::string>(kReduce);
  if (config.mixed_precision == "no") {
    if (!reduce) return {};
    throw Error(ErrorKind::kUsage,
                fmt::format("{}'{}: {}' is for mixed precision, and 'mixed_precision' is 'no'",
                            settings.where(kReduce), kReduce, *reduce))
        .hint(
            "set mixed_precision: bf16, or drop it: gradients are reduced in the dtype of their parameters");
  }
  if (config.distributed_type != DistributedType::kFsdp || config.fsdp.version != 2) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{}'{}: {}' without FSDP version 2 is not there yet", settings.where(kPrecision),
                            kPrecision, config.mixed_precision))
        .hint("set distributed_type: FSDP and fsdp_config: {fsdp_version: 2}");
  }
  PrecisionConfig precision;
  precision.param_dtype = torch_name(config.mixed_precision);
  precision.reduce_dtype = reduce ? torch_name(*reduce) : precision.param_dtype;
  return precision;
}

}  // namespace accel::core
