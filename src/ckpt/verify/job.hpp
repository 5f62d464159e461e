#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/read/kind.hpp"
#include "ckpt/verify/sums.hpp"
#include "ckpt/verify/verify.hpp"

namespace accel::ckpt {

/// A checksum that is still to be compared. The finding, if it does not hold: its text is what has the
/// checksum ("record 'data/0'"), and what was found is put behind.
struct PendingSum {
  SumClaim claim;
  Finding finding;
};

/// What could be said of one checkpoint without reading its data, and what that is to be compared with.
struct VerifyJob {
  Verified result;
  std::vector<PendingSum> sums;
};

/// A DCP directory. `times_matter`: nothing else says that its files belong together.
[[nodiscard]] VerifyJob verify_dcp(const std::filesystem::path& directory, unsigned threads,
                                   bool times_matter);

/// A directory with `accel_manifest.json`: that the files it lists, and only those, are there, with the sizes
/// and checksums it gives, and the tensors too. With `only` not empty, no more than the files that it names,
/// and those in the subdirectories that it names.
[[nodiscard]] VerifyJob verify_manifest(const std::filesystem::path& directory,
                                        const std::set<std::string>& only);

/// An archive of torch.save or a TorchScript model. `kind` is name_of(Kind).
[[nodiscard]] VerifyJob verify_torch(const std::filesystem::path& file, std::string_view kind);

/// A safetensors file.
[[nodiscard]] VerifyJob verify_safetensors(const std::filesystem::path& file);

/// Several files that make one checkpoint, each verified by itself elsewhere: whether they belong together,
/// and have all of every tensor. `path` is a directory, or the first rank's file.
[[nodiscard]] VerifyJob verify_set(const std::filesystem::path& path, Kind kind);

inline constexpr const char* kManifestName = "accel_manifest.json";

}  // namespace accel::ckpt
