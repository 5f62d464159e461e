#include "train/loop/open_model.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.hpp"

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

}  // namespace

ModelFile open_model(const config::ModelConfig& config, Group& group) {
  if (!config.broadcast_from_rank0 || group.size() == 1) {
    require_file(config.path, group.rank());
    require_file(config.weights, group.rank());
    return ModelFile::open(config.path);
  }
  if (group.rank() != 0) return ModelFile::from_outline(ModelOutline::from_bytes(group.broadcast_bytes({})));
  ModelFile file = ModelFile::open(config.path);
  group.broadcast_bytes(file.outline().to_bytes());
  return file;
}

}  // namespace accel::train
