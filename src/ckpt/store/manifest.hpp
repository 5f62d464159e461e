#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace accel::ckpt {

/// The file beside a saved checkpoint that lists its other files and its tensors.
inline constexpr const char* kManifestName = "accel_manifest.json";

struct ManifestFile {
  std::uint64_t bytes = 0;
  std::uint32_t crc32 = 0;
};

struct ManifestTensor {
  std::string dtype;  ///< The dtype's torch_name().
  std::vector<std::int64_t> shape;

  friend bool operator==(const ManifestTensor&, const ManifestTensor&) = default;
};

/// What `accel_manifest.json` says of a checkpoint (docs/formats.md, "Verifying").
struct Manifest {
  std::int64_t step = 0;
  int world_size = 0;
  std::map<std::string, ManifestFile> files;  ///< The files by path relative to the manifest's directory.
  std::map<std::string, ManifestTensor> tensors;
  /// Tensors that are the same parameter of the model as another one, with the name of that one.
  std::map<std::string, std::string> tied;
};

/// The text of the file, without a newline at its end.
[[nodiscard]] std::string encode_manifest(const Manifest& manifest);

/// Throws Error: kCorrupt if the file is not a manifest of version 1, or lists a file outside its directory;
/// kUsage if its version is newer.
[[nodiscard]] Manifest parse_manifest(const std::filesystem::path& path);

}  // namespace accel::ckpt
