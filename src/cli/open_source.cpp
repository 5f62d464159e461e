#include "cli/open_source.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "base/error.hpp"
#include "base/log.hpp"
#include "ckpt/read/search.hpp"
#include "ckpt/read/state_root.hpp"

namespace accel::cli {

std::unique_ptr<ckpt::Checkpoint> open_source(const std::string& path, std::string_view doing) {
  const ckpt::FoundCheckpoint found = ckpt::find_checkpoint(path, ckpt::Want::kModel);
  const bool named = found.path == std::filesystem::path(path);
  if (!named) log::info(fmt::format("{} '{}'", doing, found.path.string()));
  for (const std::filesystem::path& other : found.passed_over) {
    log::warn(fmt::format("'{}' is not taken; name it to take it", other.string()));
  }
  std::unique_ptr<ckpt::Checkpoint> source = ckpt::open_checkpoint(found.path);
  if (!named && is_optimizer(*source)) {
    throw Error(ErrorKind::kMissing,
                fmt::format("'{}' holds no checkpoint of a model, but an optimizer's: '{}'", path,
                            found.path.string()))
        .hint("name the checkpoint of the optimizer itself to take it");
  }
  return source;
}

}  // namespace accel::cli
