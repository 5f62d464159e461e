#include "ckpt/store/resume_point.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/error.hpp"
#include "base/files/file.hpp"
#include "base/metadata_limit.hpp"
#include "ckpt/io/summed_file.hpp"
#include "ckpt/store/accelerate_names.hpp"
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

/// Whether `name` is a file with the values of tensors, which the ranks compare with its sum when they read
/// it.
bool has_values(const std::string& name) {
  const std::string extension = fs::path(name).extension().string();
  const bool is_part = name.starts_with(kModelStem) || name.starts_with(kOptimizerStem);
  return extension == ".distcp" || (extension == ".bin" && is_part);
}

std::optional<std::string> wrong_contents(const fs::path& path, const ManifestFile& listed,
                                          const std::string& name) {
  const std::uint32_t found = crc32_of(File::open_read(path), 0, listed.bytes);
  if (found == listed.crc32) return std::nullopt;
  return fmt::format("'{}' is not the file that was saved: its CRC-32 is {:08x}, and {} says {:08x}", name,
                     found, kManifestName, listed.crc32);
}

/// Throws the Error (kUsage) for a file that is not read within metadata_limit(). It may be sound, and a
/// larger limit decides.
void require_within_limit(const Error& error, const fs::path& file) {
  if (!is_beyond_metadata_limit(error)) return;
  const std::string name = fmt::format("'{}'", file.string());
  const bool names_it = error.message().starts_with(name);
  throw Error(ErrorKind::kUsage, names_it ? error.message() : fmt::format("{}: {}", name, error.message()))
      .hint(error.advice() + "; or move the checkpoint away, and the run goes on from an older one");
}

/// What is wrong with the state of the run.
std::optional<std::string> wrong_state(const fs::path& file, const Manifest& manifest) {
  try {
    const RunState state = read_run_state(file);
    if (state.step != manifest.step) return fmt::format("its {} is of step {}", kRunStateName, state.step);
    if (state.world_size != manifest.world_size)
      return fmt::format("its {} is of {} ranks, and {} says {}", kRunStateName, state.world_size,
                         kManifestName, manifest.world_size);
    return std::nullopt;
  } catch (const Error& error) {
    require_within_limit(error, file);
    if (error.kind() != ErrorKind::kCorrupt) throw;
    return error.message();
  }
}

}  // namespace

std::optional<std::string> why_not_whole(const fs::path& directory, std::int64_t step) {
  const fs::path file = directory / kManifestName;
  Manifest manifest;
  try {
    manifest = parse_manifest(file);
  } catch (Error& error) {
    require_within_limit(error, file);
    if (error.kind() == ErrorKind::kCorrupt) return fmt::format("'{}' {}", kManifestName, error.message());
    if (!fs::exists(file)) return fmt::format("it has no {}", kManifestName);
    if (error.message().find(file.string()) == std::string::npos)
      error.add_context(fmt::format("'{}'", file.string()));
    throw;
  }
  if (manifest.step != step) return fmt::format("its manifest is of step {}", manifest.step);
  if (!manifest.files.contains(kRunStateName)) return fmt::format("it has no {}", kRunStateName);
  for (const auto& [name, listed] : manifest.files) {
    if (auto why = what_is_wrong_with(directory / name, listed, name)) return why;
  }
  for (const auto& [name, listed] : manifest.files) {
    if (has_values(name)) continue;
    if (auto why = wrong_contents(directory / name, listed, name)) return why;
  }
  return wrong_state(directory / kRunStateName, manifest);
}

std::optional<std::string> why_damaged(const fs::path& directory, const std::function<void()>& before_file) {
  for (const auto& [name, listed] : parse_manifest(directory / kManifestName).files) {
    before_file();
    if (auto why = what_is_wrong_with(directory / name, listed, name)) return why;
    if (auto why = wrong_contents(directory / name, listed, name)) return why;
  }
  return std::nullopt;
}

ResumePoint newest_whole(const RunCheckpoints& checkpoints, std::int64_t below) {
  ResumePoint point;
  std::vector<std::int64_t> steps = checkpoints.steps();
  std::reverse(steps.begin(), steps.end());
  for (const std::int64_t step : steps) {
    if (step >= below) continue;
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
