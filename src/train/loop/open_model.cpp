#include "train/loop/open_model.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "import/imported_structure.hpp"
#include "train/model/compile_error.hpp"

namespace accel::train {
namespace {

/// Throws if this rank does not see the file `path`. Rank 0 needs the file in any case and is not checked
/// here: opening the file gives a more detailed error.
void require_file(const std::filesystem::path& path, int rank) {
  std::error_code error;
  if (rank == 0 || path.empty() || std::filesystem::exists(path, error)) return;
  throw Error(ErrorKind::kUsage, fmt::format("rank {} does not see '{}'", rank, path.string()))
      .hint(
          "every machine must see the model and its weights; if rank 0 alone does, set "
          "training.model.broadcast_from_rank0: true");
}

OpenedModel open(const config::ModelConfig& config, int rank) {
  if (!is_pt2(config.path)) return {ModelFile::open(config.path), config.weights};
  ImportedStructure imported = import_structure(config.path);
  if (rank == 0) {
    for (const std::string& place : imported.random_operators)
      log::warn(fmt::format("{}: draws random numbers in evaluation, too", place));
  }
  const bool has_own = imported.has_values && config.weights.empty() && !config.init_std;
  try {
    return {ModelFile::from_outline(ModelOutline::of_bytes(std::move(imported.file))),
            has_own ? config.path : config.weights};
  } catch (const torch::jit::ErrorReport& error) {
    throw compile_error(config.path, error);
  }
}

}  // namespace

OpenedModel open_model(const config::ModelConfig& config, Group& group) {
  if (!config.broadcast_from_rank0 || group.size() == 1) {
    require_file(config.path, group.rank());
    require_file(config.weights, group.rank());
    return open(config, group.rank());
  }
  if (group.rank() != 0) {
    ModelFile file = ModelFile::from_outline(ModelOutline::from_bytes(group.broadcast_bytes({})));
    const std::vector<std::byte> weights = group.broadcast_bytes({});
    return {std::move(file), std::string(reinterpret_cast<const char*>(weights.data()), weights.size())};
  }
  OpenedModel model = open(config, 0);
  group.broadcast_bytes(model.file.outline().to_bytes());
  const std::string weights = model.weights.string();
  const auto bytes = std::as_bytes(std::span(weights));
  group.broadcast_bytes({bytes.begin(), bytes.end()});
  return model;
}

}  // namespace accel::train
