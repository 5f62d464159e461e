#include "cli/ckpt/open_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.hpp"
#include "base/log.hpp"
#include "ckpt/read/search.hpp"

namespace accel::cli {

std::unique_ptr<ckpt::Checkpoint> open_source(const std::string& path, std::string_view doing) {
  const ckpt::FoundCheckpoint found = ckpt::find_checkpoint(path, ckpt::Want::kModel);
  const bool named = found.path == std::filesystem::path(path);
  if (!named) log::info(fmt::format("{} '{}'", doing, found.path.string()));
  for (const std::filesystem::path& other : found.passed_over) {
    log::warn(fmt::format("'{}' is not taken; name it to take it", other.string()));
  }
  std::unique_ptr<ckpt::Checkpoint> source = ckpt::open_checkpoint(found.path);
  if (!named && ckpt::layout_of(*source).is_optimizer) {
    throw Error(ErrorKind::kMissing,
                fmt::format("'{}' holds no checkpoint of a model, but an optimizer's: '{}'", path,
                            found.path.string()))
        .hint("name the checkpoint of the optimizer itself to take it");
  }
  return source;
}

void say_what_is_left_out(const ckpt::Checkpoint& source, const std::vector<ckpt::LayoutPart>& parts) {
  if (parts.empty()) return;
  const bool has_tensors =
      std::any_of(parts.begin(), parts.end(), [](const auto& part) { return part.tensors > 0; });
  log::warn(fmt::format("'{}': left out is {}{}", source.path().string(), to_string(parts),
                        has_tensors ? "; --root takes the tensors below a key" : ""));
}

}  // namespace accel::cli
