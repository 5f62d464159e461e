#include <fmt/format.h>

#include "base/error.hpp"
#include "core/config/resolve/resolve.hpp"

namespace accel::config {
namespace {

constexpr std::string_view kPrecision = "mixed_precision";
constexpr std::string_view kReduce = "fsdp_config.reduce_dtype";
constexpr std::string_view kScaler = "training.grad_scaler";

// fp8 computes in bfloat16 but for its linears.
std::string torch_name(std::string_view name) {
  if (name == "bf16" || name == "fp8") return "bfloat16";
  if (name == "fp16") return "float16";
  return "float32";
}

void check_reduce_dtype(const Config& config, const Settings& settings, const std::string& reduce) {
  const std::string asked = fmt::format("{}'{}: {}'", settings.where(kReduce), kReduce, reduce);
  if (config.mixed_precision == "no") {
    throw Error(ErrorKind::kUsage,
                fmt::format("{} is for mixed precision, and '{}' is 'no'", asked, kPrecision))
        .hint(
            "set mixed_precision: bf16, or drop it: gradients are reduced in the dtype of their parameters");
  }
  if (config.distributed_type != DistributedType::kFsdp) {
    throw Error(ErrorKind::kUsage, fmt::format("{} is for FSDP, and 'distributed_type' is another", asked))
        .hint("drop it: without FSDP gradients are float32");
  }
  if (reduce == "fp16" && config.mixed_precision != "fp16") {
    throw Error(ErrorKind::kUsage,
                fmt::format("{} needs 'mixed_precision: fp16', which scales the loss; found '{}'", asked,
                            config.mixed_precision))
        .hint("use fp32 or bf16");
  }
}

}  // namespace

PrecisionConfig resolve_precision(const Config& config, const Settings& settings) {
  const auto reduce = settings.get<std::string>(kReduce);
  if (reduce) check_reduce_dtype(config, settings, *reduce);
  if (settings.has(kScaler) && config.mixed_precision != "fp16") {
    throw Error(ErrorKind::kUsage,
                fmt::format("{}'{}' is for mixed_precision: fp16, and '{}' is '{}'", settings.where(kScaler),
                            kScaler, kPrecision, config.mixed_precision))
        .hint("drop the section");
  }
  PrecisionConfig precision;
  if (config.mixed_precision == "no") return precision;
  const std::string dtype = torch_name(config.mixed_precision);
  const bool sharded = config.distributed_type == DistributedType::kFsdp;
  if (sharded) {
    precision.param_dtype = dtype;
    precision.reduce_dtype = reduce ? torch_name(*reduce) : dtype;
  }
  if (sharded && config.fsdp.version == 2) {
    precision.io_dtype = dtype;
    return precision;
  }
  precision.autocast_dtype = dtype;
  if (sharded) precision.buffer_dtype = dtype;
  return precision;
}

}  // namespace accel::config
