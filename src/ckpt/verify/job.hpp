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

/// What was found of one checkpoint, or model file.
struct Verified {
  std::filesystem::path path;
  std::string kind;  ///< As name_of(Kind), or "manifest".
  std::uint64_t tensors = 0;
  std::uint64_t files = 0;         ///< Those that belong to it and are there.
  std::uint64_t bytes = 0;         ///< Of those.
  std::vector<Finding> findings;   ///< Sorted.
  std::vector<std::string> notes;  ///< What could not be looked into, which is no defect.
};

/// What could be said of one checkpoint without reading its data, and what that is to be compared with.
struct VerifyJob {
  Verified result;
  std::vector<PendingSum> sums;
};

/// An empty job for one file of `bytes` bytes. `kind` is name_of(Kind).
[[nodiscard]] VerifyJob job_for(const std::filesystem::path& file, std::string_view kind,
                                std::uint64_t bytes);

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

}  // namespace accel::ckpt
