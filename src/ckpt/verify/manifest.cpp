#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "ckpt/dcp/metadata.hpp"
#include "ckpt/dcp/metadata_files.hpp"
#include "ckpt/store/manifest.hpp"
#include "ckpt/verify/job.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;

class ManifestVerifier {
 public:
  ManifestVerifier(const fs::path& directory, const std::set<std::string>& only)
      : directory_(directory), only_(only) {
    job_.result.path = directory;
    job_.result.kind = kManifestKind;
  }

  VerifyJob run() {
    try {
      manifest_ = parse_manifest(directory_ / kManifestName);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kCorrupt && e.kind() != ErrorKind::kUsage) throw;
      report(FindingKind::kBroken, kManifestName, e.message());
      return std::move(job_);
    }
    for (const auto& [name, file] : manifest_.files) {
      if (is_wanted(name)) check_file(name, file);
    }
    check_unknown();
    check_unlisted();
    if (only_.empty()) check_tensors();
    return std::move(job_);
  }

 private:
  void report(FindingKind kind, const std::string& file, std::string text, const std::string& tensor = "") {
    job_.result.findings.push_back({kind, file, tensor, 0, 0, std::move(text)});
  }

  [[nodiscard]] bool is_wanted(const std::string& name) const {
    return only_.empty() || only_.contains(name) || only_.contains(name.substr(0, name.find('/')));
  }

  void check_file(const std::string& name, const ManifestFile& listed) {
    const fs::path path = directory_ / name;
    std::error_code error;
    if (!fs::is_regular_file(path, error)) {
      report(FindingKind::kMissingFile, name, "is not there, but the manifest lists it");
      return;
    }
    const std::uint64_t bytes = fs::file_size(path);
    ++job_.result.files;
    job_.result.bytes += bytes;
    if (bytes != listed.bytes) {
      report(bytes < listed.bytes ? FindingKind::kTruncated : FindingKind::kMismatch, name,
             fmt::format("has {} bytes, the manifest says {}", bytes, listed.bytes));
      return;
    }
    job_.sums.push_back({{path, 0, bytes, listed.crc32},
                         {FindingKind::kChecksum, name, "", 0, 0, "is not the file that was saved: it"}});
  }

  // Reports a directory that the user named but the manifest does not list: nothing says that its files are
  // of one save.
  void check_unknown() {
    for (const std::string& wanted : only_) {
      if (!fs::is_directory(directory_ / wanted)) continue;
      const auto listed = manifest_.files.lower_bound(wanted + "/");
      if (listed != manifest_.files.end() && listed->first.starts_with(wanted + "/")) continue;
      report(FindingKind::kMismatch, kManifestName,
             fmt::format("lists no file of '{}', which may have been renamed or put there", wanted));
    }
  }

  // Reports data files beside those that the manifest lists.
  void check_unlisted() {
    std::set<std::string> folders;
    for (const auto& [name, file] : manifest_.files) {
      if (is_wanted(name)) folders.insert(fs::path(name).parent_path().string());
    }
    for (const std::string& folder : folders) {
      if (!fs::is_directory(directory_ / folder)) continue;
      for (const fs::directory_entry& entry : fs::directory_iterator(directory_ / folder)) {
        const std::string name = (fs::path(folder) / entry.path().filename()).string();
        if (entry.path().extension() != ".distcp" || manifest_.files.contains(name)) continue;
        if (is_needed(entry.path())) {
          report(FindingKind::kMismatch, name,
                 "is not listed in the manifest, but .metadata says that it holds tensors");
        } else {
          report(FindingKind::kStale, name, "is not listed in the manifest");
        }
      }
    }
  }

  // Whether the `.metadata` beside a data file refers to it.
  static bool is_needed(const fs::path& file) {
    DcpMetadata metadata;
    const fs::path path = file.parent_path() / ".metadata";
    if (!fs::exists(path) || corruption_in([&] { metadata = parse_dcp_metadata_file(path); })) return false;
    const std::string name = file.filename().string();
    return std::any_of(metadata.tensors.begin(), metadata.tensors.end(), [&](const DcpTensor& tensor) {
      return std::any_of(tensor.chunks.begin(), tensor.chunks.end(),
                         [&](const DcpChunk& chunk) { return chunk.where.file() == name; });
    });
  }

  // Compares the tensors that the listed `.metadata` files describe with the manifest's list.
  void check_tensors() {
    std::map<std::string, ManifestTensor> found;
    for (const auto& [name, file] : manifest_.files) {
      if (fs::path(name).filename() != ".metadata") continue;
      if (!fs::exists(directory_ / name)) return;  // One finding says so; its tensors cannot be known.
      DcpMetadata metadata;
      const fs::path path = directory_ / name;
      if (corruption_in([&] { metadata = parse_dcp_metadata_file(path); }))
        return;  // The checkpoint's own verification says so.
      for (DcpTensor& tensor : metadata.tensors)
        found[tensor.fqn] = {std::string(torch_name(tensor.dtype)), std::move(tensor.shape)};
    }
    for (const auto& [name, listed] : manifest_.tensors) {
      const auto at = found.find(name);
      if (at == found.end()) {
        report(FindingKind::kMismatch, kManifestName, "is listed, but no .metadata describes it", name);
      } else if (at->second != listed) {
        report(FindingKind::kMismatch, kManifestName,
               fmt::format("is listed as {} {}, .metadata says {} {}", listed.dtype, to_string(listed.shape),
                           at->second.dtype, to_string(at->second.shape)),
               name);
      }
    }
    for (const auto& [name, tensor] : found) {
      if (manifest_.tensors.contains(name)) continue;
      report(FindingKind::kMismatch, kManifestName, "is in .metadata, but not listed", name);
    }
  }

  fs::path directory_;
  std::set<std::string> only_;
  VerifyJob job_;
  Manifest manifest_;
};

}  // namespace

VerifyJob verify_manifest(const fs::path& directory, const std::set<std::string>& only) {
  return ManifestVerifier(directory, only).run();
}

}  // namespace accel::ckpt
