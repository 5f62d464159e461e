#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/read/kind.hpp"
#include "ckpt/verify/finding.hpp"
#include "ckpt/verify/sums.hpp"

namespace accel::ckpt {

/// Verified::kind of a manifest.
inline constexpr std::string_view kManifestKind = "manifest";

/// The result for one checkpoint or model file.
struct Verified {
  std::filesystem::path path;
  std::string kind;  ///< The name_of(Kind), or "manifest".
  std::uint64_t tensors = 0;
  std::uint64_t files = 0;         ///< The number of files of the checkpoint that are there.
  std::uint64_t bytes = 0;         ///< The bytes in the files that are there.
  std::vector<Finding> findings;   ///< The findings, sorted.
  std::vector<std::string> notes;  ///< What could not be verified, without being a defect.
};

/// The result for one checkpoint before its data is read, and the checksums that are still to be compared.
struct VerifyJob {
  Verified result;
  std::vector<PendingSum> sums;
};

/// An empty job for one file of `bytes` bytes. `kind` is name_of(Kind).
[[nodiscard]] VerifyJob job_for(const std::filesystem::path& file, std::string_view kind,
                                std::uint64_t bytes);

/// Verifies a DCP directory. `times_matter` is true if nothing but the times of its files says that they are
/// of one save.
[[nodiscard]] VerifyJob verify_dcp(const std::filesystem::path& directory, unsigned threads,
                                   bool times_matter);

/// Verifies a directory by its `accel_manifest.json`: that the files it lists, and no other data files, are
/// there with their sizes and checksums, and that `.metadata` describes the tensors it lists. If `only` is
/// not empty, it is limited to the files that `only` names, and to those in the subdirectories that `only`
/// names.
[[nodiscard]] VerifyJob verify_manifest(const std::filesystem::path& directory,
                                        const std::set<std::string>& only);

/// Verifies an archive of torch.save, or a TorchScript model. `kind` is name_of(Kind).
[[nodiscard]] VerifyJob verify_torch(const std::filesystem::path& file, std::string_view kind);

/// Verifies a model of torch.export: its archive, and that the archive has the tensors that it lists.
[[nodiscard]] VerifyJob verify_pt2(const std::filesystem::path& file);

/// Verifies a safetensors file.
[[nodiscard]] VerifyJob verify_safetensors(const std::filesystem::path& file);

/// Verifies that several files that make one checkpoint belong together and have all of every tensor. It does
/// not verify each file by itself. `path` is a directory, or the first rank's file.
[[nodiscard]] VerifyJob verify_set(const std::filesystem::path& path, Kind kind);

}  // namespace accel::ckpt
