#include "train/checkpoint/adapter.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/error.hpp"
#include "base/log.hpp"
#include "ckpt/store/adapter_names.hpp"
#include "ckpt/store/model_assets.hpp"

namespace accel::train {
namespace {

namespace fs = std::filesystem;

void require_named(const std::string& fqn, const std::vector<std::string>& names) {
  const bool is_named = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return fqn.find(name) != std::string::npos;
  });
  if (!is_named) {
    throw Error(ErrorKind::kUsage,
                fmt::format("training.checkpoint.adapter_only: '{}' is trained, but its name has none of "
                            "training.checkpoint.adapter_names in it, which are {}",
                            fqn, fmt::join(names, ", ")))
        .hint("freeze the parameter before the export, or add a part of its name to adapter_names");
  }
  if (const auto adapter = ckpt::other_adapter_of(fqn)) {
    throw Error(ErrorKind::kUsage,
                fmt::format("training.checkpoint.adapter_only: '{}' is of an adapter named '{}', "
                            "and the name must be PEFT's default",
                            fqn, *adapter))
        .hint("leave out adapter_name in get_peft_model");
  }
}

}  // namespace

void require_adapter(const ShardedModel& model, const std::vector<std::string>& names) {
  std::map<std::string, std::string> stored;  // Maps a name in a file to the parameter.
  for (const auto& unit : model.units()) {
    for (const auto& buffer : unit->buffers()) {
      if (!buffer->trainable()) continue;
      for (const FlatParameter& parameter : buffer->layout().parameters) {
        for (const std::string& fqn : parameter.spec.fqns) {
          require_named(fqn, names);
          const auto [other, fresh] = stored.emplace(ckpt::adapter_file_name(fqn), fqn);
          if (fresh) continue;
          throw Error(
              ErrorKind::kUsage,
              fmt::format("training.checkpoint.adapter_only: '{}' and '{}' would both be stored as '{}'",
                          other->second, fqn, other->first));
        }
      }
    }
  }
}

std::vector<fs::path> assets_of(const config::TrainingConfig& config, const fs::path& checkpoint) {
  if (!config.checkpoint.adapter_only) {
    // The configuration of the model lies beside the weights that the training began with.
    return ckpt::assets_beside(config.model.weights);
  }
  std::vector<fs::path> assets = ckpt::adapter_assets(checkpoint, config.model.path);
  if (assets.empty()) {
    log::warn(
        fmt::format("the export has no {}, which PEFT needs beside the adapter: the notes of '{}' have no "
                    "adapter_config, and there is no such file beside it",
                    ckpt::kAdapterConfigName, config.model.path.string()));
  }
  return assets;
}

}  // namespace accel::train
