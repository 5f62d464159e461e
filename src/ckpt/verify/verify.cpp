#include "ckpt/verify/verify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "base/error.hpp"
#include "base/files/directory.hpp"
#include "base/files/file.hpp"
#include "base/host/threads.hpp"
#include "ckpt/io/foreign_format.hpp"
#include "ckpt/read/folders.hpp"
#include "ckpt/read/kind.hpp"
#include "ckpt/read/rank_files.hpp"
#include "ckpt/read/search.hpp"
#include "ckpt/store/accelerate_names.hpp"
#include "ckpt/store/manifest.hpp"
#include "ckpt/store/weight_index.hpp"
#include "ckpt/torch/legacy.hpp"
#include "ckpt/verify/job.hpp"
#include "ckpt/verify/sums.hpp"
#include "ckpt/zip/index.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;

bool has_manifest(const fs::path& directory) { return fs::exists(directory / kManifestName); }

// A directory with data files but without `.metadata` is a broken DCP checkpoint.
bool is_dcp(const fs::path& directory) {
  return fs::exists(directory / ".metadata") || has_data_files(directory);
}

// Whether the files of a directory make one checkpoint. Safetensors that lie beside each other by chance do
// not.
bool is_set(const fs::path& directory, Kind kind) {
  if (kind == Kind::kTorchSharded || kind == Kind::kDcpSafetensors) return true;
  if (kind != Kind::kSafetensorsSharded) return false;
  if (!index_names_in(directory, ".safetensors").empty()) return true;
  const std::vector<std::string> names = names_in(directory);
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    const std::optional<WeightShard> shard = parse_weight_shard(name);
    return shard && shard->extension == ".safetensors";
  });
}

bool may_be_checkpoint(const fs::path& path) {
  const fs::path extension = path.extension();
  return extension == ".safetensors" || extension == ".bin" || extension == ".pt" || extension == ".pth" ||
         extension == ".pt2";
}

// The names of the files in the set that a rank's file belongs to. Empty if two of them are of one rank: the
// verification of the set reports that.
std::set<std::string> names_of_ranks(const fs::path& file) {
  std::set<std::string> names;
  (void)corruption_in([&] {
    for (const auto& [rank, name] : rank_files_of(file).files) names.insert(name);
  });
  return names;
}

/// Finds the checkpoints and files to verify, and makes a job for each.
class Search {
 public:
  explicit Search(const VerifyOptions& options, unsigned threads) : options_(options), threads_(threads) {}

  std::vector<VerifyJob> run(const fs::path& path) {
    // A manifest lies beside the files, and above the directories, that it lists.
    const fs::path named = fs::canonical(path);
    if (fs::is_directory(path)) {
      const bool listed_above = !has_manifest(path) && is_dcp(path) && has_manifest(named.parent_path());
      search(path, options_.depth, listed_above);
      if (options_.depth > 0) add_damaged(path);
      if (listed_above) jobs_.push_back(verify_manifest(named.parent_path(), {named.filename().string()}));
    } else {
      const std::set<std::string> names = add_named(path);
      if (!names.empty() && has_manifest(named.parent_path())) {
        jobs_.push_back(verify_manifest(named.parent_path(), names));
      }
    }
    if (jobs_.empty()) {
      throw Error(ErrorKind::kMissing, fmt::format("'{}' holds no checkpoint and no model", path.string()));
    }
    return std::move(jobs_);
  }

 private:
  void search(const fs::path& directory, int depth, bool listed) {
    if (has_manifest(directory)) {
      jobs_.push_back(verify_manifest(directory, {}));
      listed = true;
    }
    if (is_dcp(directory)) {
      jobs_.push_back(verify_dcp(directory, threads_, !listed));
      return;
    }
    if (const Kind kind = kind_of(directory); is_set(directory, kind)) {
      jobs_.push_back(verify_set(directory, kind));
    } else if (const auto indexes = index_names_in(directory, ".bin");
               kind == Kind::kDirectory && !indexes.empty()) {
      // The same weights are in one file of safetensors beside the set.
      jobs_.push_back(verify_set(directory / indexes.front(), Kind::kTorchSharded));
    }
    add_rank_files(directory);
    if (depth > 0) {
      for (const Folder& folder : folders_in(directory)) {
        if (folder.state == Folder::State::kOpen) search(folder.path, depth - 1, listed);
      }
    }
    for (const fs::path& entry : entries_in(directory)) {
      std::error_code unreadable;
      const fs::file_status status = fs::status(entry, unreadable);
      if (fs::is_regular_file(status)) {
        add_file(entry, false);
      } else if (!fs::is_directory(status) && may_be_checkpoint(entry)) {
        add_finding(entry, {FindingKind::kBroken, entry.filename().string(), "", 0, 0,
                            fs::exists(status) ? "is not a regular file" : "is a link to nothing"});
      }
    }
  }

  void add_finding(const fs::path& path, Finding finding) {
    VerifyJob job;
    job.result.path = path;
    job.result.kind = name_of(Kind::kUnknown);
    job.result.findings.push_back(std::move(finding));
    jobs_.push_back(std::move(job));
  }

  // Adds a finding for each damaged checkpoint, such as a save that has not finished. Directories with data
  // files but without `.metadata` have findings from verify_dcp.
  void add_damaged(const fs::path& directory) {
    for (const DamagedCheckpoint& damaged : list_checkpoints(directory).damaged) {
      if (fs::is_directory(damaged.path) && is_dcp(damaged.path)) continue;
      add_finding(damaged.path, {FindingKind::kMissingFile, "", "", 0, 0, damaged.why});
    }
  }

  // Adds the jobs for a file that the user named. Returns the names of all files that it stands for.
  std::set<std::string> add_named(const fs::path& path) {
    const std::string name = path.filename().string();
    std::vector<std::string> names_here = {name};
    const std::vector<RankFiles> set =
        fs::is_regular_file(path) ? take_rank_sets(parent_of(path), names_here) : std::vector<RankFiles>{};
    if (!set.empty()) {
      jobs_.push_back(verify_set(path, kind_of_set(set.front())));
      std::set<std::string> names = names_of_ranks(path);
      for (const std::string& rank : names) add_file(parent_of(path) / rank, true);
      return names;
    }
    const std::optional<WeightShard> shard = parse_weight_shard(name);
    const bool is_index = name.ends_with(".safetensors.index.json") || name.ends_with(".bin.index.json");
    if (is_index || (shard && shard->count > 1) ||
        (name.starts_with("shard-") && name.ends_with(".safetensors"))) {
      search(parent_of(path), 0, false);
      return {};
    }
    add_file(path, true);
    return {name};
  }

  // Adds a job for each set of files that each rank wrote for itself.
  void add_rank_files(const fs::path& directory) {
    std::vector<std::string> names = names_in(directory);
    for (const RankFiles& set : take_rank_sets(directory, names)) {
      jobs_.push_back(verify_set(directory / set.files.begin()->second, kind_of_set(set)));
    }
  }

  // `named` is true if the user named this file: then a file that is not a model is a finding.
  void add_file(const fs::path& path, bool named) {
    if (!named && !may_be_checkpoint(path)) return;
    Kind kind = Kind::kTorch;  // The file begins like a zip archive, but its directory cannot be read.
    (void)corruption_in([&] { kind = kind_of(path); });
    if (kind == Kind::kSafetensors || kind == Kind::kDcpSafetensors) {
      jobs_.push_back(verify_safetensors(path));
    } else if (kind == Kind::kTorch || kind == Kind::kTorchScript) {
      jobs_.push_back(verify_torch(path, name_of(kind)));
    } else if (kind == Kind::kLocal || kind == Kind::kDtensor) {
      jobs_.push_back(verify_torch(path, name_of(Kind::kTorch)));
    } else if (kind == Kind::kPt2) {
      jobs_.push_back(verify_pt2(path));
    } else if (named || path.filename().string().starts_with("pytorch_model")) {
      const File file = File::open_read(path);
      const FileWindow window(file, 0, file.size());
      const auto format = foreign_format(file);
      add_finding(path, {FindingKind::kBroken, path.filename().string(), "", 0, 0,
                         format ? format->what
                         : looks_like_tar(window)
                             ? std::string(kIsTar)
                             : "is neither a file of torch.save nor safetensors; it may be truncated"});
    }
  }

  const VerifyOptions& options_;
  unsigned threads_;
  std::vector<VerifyJob> jobs_;
};

/// Whether every record of `file` has a checksum that the verification of `checkpoint` has compared.
bool covers(const Verified& checkpoint, const fs::path& file) {
  std::error_code gone;  // A file that is not there is none of the two.
  if (checkpoint.kind == name_of(Kind::kDcp))
    return file.extension() == ".distcp" && fs::equivalent(checkpoint.path, file.parent_path(), gone);
  const bool is_archive = checkpoint.kind == name_of(Kind::kTorch) ||
                          checkpoint.kind == name_of(Kind::kTorchScript) ||
                          checkpoint.kind == name_of(Kind::kPt2);
  if (!is_archive || !fs::equivalent(checkpoint.path, file, gone)) return false;
  const File opened = File::open_read(file);
  return looks_like_zip(FileWindow(opened, 0, opened.size()));
}

/// Says of a file that is not the one that a manifest lists that no tensor is touched, if the checksums of
/// all its records hold: they cover what is loaded, and not the padding and some fields of headers.
void say_what_is_padding(std::vector<Verified>& checkpoints) {
  for (Verified& manifest : checkpoints) {
    if (manifest.kind != kManifestKind) continue;
    for (Finding& finding : manifest.findings) {
      if (finding.kind != FindingKind::kChecksum) continue;
      const auto is_sound = [&](const Verified& other) {
        return other.kind != kManifestKind && other.findings.empty() &&
               covers(other, manifest.path / finding.file);
      };
      if (std::any_of(checkpoints.begin(), checkpoints.end(), is_sound))
        finding.text +=
            "; no tensor is touched: the checksums of all records in it hold, so the change is in "
            "padding or in a header";
    }
  }
}

}  // namespace

std::size_t VerifyReport::findings() const {
  std::size_t count = 0;
  for (const Verified& checkpoint : checkpoints) count += checkpoint.findings.size();
  return count;
}

VerifyReport verify(const fs::path& path, const VerifyOptions& options) {
  if (!fs::exists(path)) throw Error(ErrorKind::kMissing, fmt::format("'{}' is not there", path.string()));
  const unsigned threads = options.threads != 0 ? options.threads : default_threads();
  std::vector<VerifyJob> jobs = Search(options, threads).run(path);

  std::vector<SumClaim> claims;
  for (const VerifyJob& job : jobs) {
    const std::vector<SumClaim> of_job = claims_of(job.sums);
    claims.insert(claims.end(), of_job.begin(), of_job.end());
  }
  VerifyReport report;
  report.summed_bytes = bytes_of_claims(claims);
  Progress progress("verifying", report.summed_bytes, options.progress);
  const std::vector<std::optional<std::string>> results =
      check_sums(claims, threads, [&](std::uint64_t bytes) { progress.add(bytes); });
  report.seconds = progress.seconds();

  std::size_t next = 0;
  for (VerifyJob& job : jobs) {
    const std::size_t count = job.sums.size();
    add_wrong_sums(std::move(job.sums), std::span(results).subspan(next, count), job.result.findings);
    next += count;
    sort_findings(job.result.findings);
    report.checkpoints.push_back(std::move(job.result));
  }
  say_what_is_padding(report.checkpoints);
  std::stable_sort(report.checkpoints.begin(), report.checkpoints.end(),
                   [](const Verified& a, const Verified& b) { return a.path < b.path; });
  return report;
}

}  // namespace accel::ckpt
