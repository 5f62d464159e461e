#include "ckpt/store/resume_point.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/error.hpp"
#include "ckpt/store/manifest.hpp"
#include "ckpt/store/run_state.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> what_is_wrong_with(const fs::path& file, const ManifestFile& listed,
                                              const std::string& name) {
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (status.type() == fs::file_type::not_found) return fmt::format("'{}' is missing", name);
  if (error) throw system_error("look at", file.string(), error.value());
  if (!fs::is_regular_file(status)) return fmt::format("'{}' is not a regular file", name);
  const std::uintmax_t bytes = fs::file_size(file, error);
  if (error) throw system_error("look at", file.string(), error.value());
  if (bytes == listed.bytes) return std::nullopt;
  return fmt::format("'{}' has {} bytes, and {} says {}", name, bytes, kManifestName, listed.bytes);
}

}  // namespace

std::optional<std::string> why_not_whole(const fs::path& directory, std::int64_t step) {
  const fs::path file = directory / kManifestName;
  Manifest manifest;
  try {
    manifest = parse_manifest(file);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kCorrupt) return fmt::format("'{}' {}", kManifestName, error.message());
    if (fs::exists(file)) throw;
    return fmt::format("it has no {}", kManifestName);
  }
  if (manifest.step != step) return fmt::format("its manifest is of step {}", manifest.step);
  if (!manifest.files.contains(kRunStateName)) return fmt::format("it has no {}", kRunStateName);
  for (const auto& [name, listed] : manifest.files) {
    if (auto why = what_is_wrong_with(directory / name, listed, name)) return why;
  }
  return std::nullopt;
}

ResumePoint newest_whole(const RunCheckpoints& checkpoints) {
  ResumePoint point;
  std::vector<std::int64_t> steps = checkpoints.steps();
  std::reverse(steps.begin(), steps.end());
  for (const std::int64_t step : steps) {
    const auto why = why_not_whole(checkpoints.path_of(step), step);
    if (!why) {
      point.step = step;
      break;
    }
    point.skipped.push_back({step, *why});
  }
  return point;
}

}  // namespace accel::ckpt
