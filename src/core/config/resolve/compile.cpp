#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>

#include "base/error.hpp"
#include "core/config/resolve/resolve.hpp"

namespace accel::config {
namespace {

constexpr std::array<std::string_view, 2> kBackends = {"dynamo_config.backend", "dynamo_backend"};

[[noreturn]] void refuse(const Settings& settings, std::string_view key, const std::string& why,
                         const std::string& hint) {
  throw Error(ErrorKind::kUsage,
              fmt::format("{}'{}: INDUCTOR' runs compiled code, {}", settings.where(key), key, why))
      .hint(hint);
}

}  // namespace

void resolve_compile(Config& config, const Settings& settings) {
  const auto* key = std::find_if(kBackends.begin(), kBackends.end(),
                                 [&](std::string_view path) { return settings.has(path); });
  if (key == kBackends.end()) return;
  std::string backend = settings.get<std::string>(*key).value_or("NO");
  for (char& c : backend) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (backend != "INDUCTOR") return;
  config.training->compile.backend = backend;
  if (config.has_float8()) {
    refuse(settings, *key, "and not with 'mixed_precision: fp8'",
           "set mixed_precision: bf16, or dynamo_backend: NO");
  }
  if (config.fsdp.tp_size > 1 || config.fsdp.sequence_size > 1) {
    refuse(settings, *key, "and not with tp_size, sp_size or cp_size above 1",
           "set these sizes of parallelism_config to 1, or dynamo_backend: NO");
  }
  if (!config.launch.use_cpu)
    refuse(settings, *key, "which is for CPUs alone", "set use_cpu: true, or dynamo_backend: NO");
}

}  // namespace accel::config
