#include "ckpt/verify/repair.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/files/directory.hpp"
#include "base/files/file.hpp"
#include "base/host/threads.hpp"
#include "ckpt/dcp/metadata.hpp"
#include "ckpt/dcp/metadata_files.hpp"
#include "ckpt/dcp/record.hpp"
#include "ckpt/read/folders.hpp"
#include "ckpt/read/search.hpp"
#include "ckpt/store/manifest.hpp"
#include "ckpt/verify/archive.hpp"
#include "ckpt/verify/job.hpp"
#include "ckpt/verify/sums.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;

// Returns R of "__R_0.distcp".
std::optional<int> rank_of(const std::string& name) {
  int rank = -1;
  if (name.starts_with("__")) (void)std::from_chars(name.data() + 2, name.data() + name.size(), rank);
  if (rank < 0 || fmt::format("__{}_0.distcp", rank) != name) return std::nullopt;
  return rank;
}

bool has_sound_metadata(const fs::path& directory) {
  if (!fs::exists(directory / ".metadata")) return false;
  return !corruption_in([&] { (void)parse_dcp_metadata_file(directory / ".metadata"); });
}

// Repair writes nothing into an unfinished save, or into what is left over, unless the user names it.
void find_data(const fs::path& directory, int depth, std::vector<fs::path>& found) {
  if (has_data_files(directory)) return found.push_back(directory);
  if (depth == 0) return;
  for (const Folder& folder : folders_in(directory)) {
    if (folder.state == Folder::State::kOpen) find_data(folder.path, depth - 1, found);
  }
}

class Scanner {
 public:
  Scanner(const fs::path& directory, const RepairOptions& options)
      : directory_(directory), options_(options) {}

  RepairScan run() {
    std::map<int, std::string> files;
    for (const fs::path& path : entries_in(directory_)) {
      const std::string name = path.filename().string();
      if (path.extension() != ".distcp") continue;
      if (const auto rank = rank_of(name)) {
        files[*rank] = name;
      } else {
        report(FindingKind::kMismatch, name, "", 0, 0, "is not named as accel names its data files");
      }
    }
    int next = 0;
    for (const auto& [rank, name] : files) {
      for (; next < rank; ++next) {
        report(FindingKind::kMissingFile, fmt::format("__{}_0.distcp", next), "", 0, 0,
               fmt::format("is not there, but {} is", name));
      }
      next = rank + 1;
      scan_file(rank, name);
    }
    check_manifest();
    check_sums_of_data();
    check_tensors();
    sort_findings(result_.findings);
    return std::move(result_);
  }

 private:
  void report(FindingKind kind, const std::string& file, const std::string& tensor, std::uint64_t begin,
              std::uint64_t end, std::string text) {
    result_.findings.push_back({kind, file, tensor, begin, end, std::move(text)});
  }

  // Goes from record to record: each says where its item lies, and the next record follows that.
  void scan_file(int rank, const std::string& name) {
    const File file = File::open_read(directory_ / name);
    const std::uint64_t bytes = file.size();
    result_.bytes += bytes;
    DcpRankPlan plan;
    plan.rank = rank;
    plan.file = name;
    plan.total_bytes = bytes;
    std::uint64_t at = 0;
    std::uint64_t count = 0;
    while (at < bytes) {
      const std::optional<ItemRecord> record = read_record(file, name, at, plan);
      if (!record) break;
      count = record->count;
      check_item(file, name, *record);
      plan.items.push_back(planned_of(*record, at));
      at = round_up(record->offset + record->length, kDcpAlignment);
    }
    if (at >= bytes && plan.items.size() < count) {
      report(FindingKind::kTruncated, name, "", 0, 0,
             fmt::format("has {} of {} items", plan.items.size(), count));
    }
    result_.plans.push_back(std::move(plan));
  }

  // The record at `at`; nothing, and a finding, if it is not the one that should be there.
  std::optional<ItemRecord> read_record(const File& file, const std::string& name, std::uint64_t at,
                                        const DcpRankPlan& plan) {
    const std::uint64_t left = file.size() - at;
    std::vector<std::byte> bytes(std::min<std::uint64_t>(kItemRecordHead, left));
    file.read_at(at, bytes);
    const std::optional<std::uint64_t> size = item_record_bytes(bytes);
    if (!size) {
      report(FindingKind::kBroken, name, "", at, file.size(),
             at == 0 ? "does not begin with an item record; only accel writes them"
                     : "there is no item record here, so what follows is unknown");
      return std::nullopt;
    }
    if (*size > left) {
      report(FindingKind::kTruncated, name, "", at, at + *size,
             fmt::format("the file ends at byte {}", at + left));
      return std::nullopt;
    }
    bytes.resize(*size);
    file.read_at(at, bytes);
    try {
      ItemRecord record = decode_item_record(bytes);
      check_place(record, at + *size, file.size(), plan);
      return record;
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kCorrupt) throw;
      report(FindingKind::kBroken, name, "", at, at + *size, e.message());
      return std::nullopt;
    }
  }

  static void check_place(const ItemRecord& record, std::uint64_t end, std::uint64_t file_bytes,
                          const DcpRankPlan& plan) {
    const auto reject = [](std::string text) { throw Error(ErrorKind::kCorrupt, std::move(text)); };
    if (record.rank != static_cast<std::uint32_t>(plan.rank)) {
      reject(fmt::format("the item record is of rank {}: the file was renamed", record.rank));
    }
    if (record.index != plan.items.size()) {
      reject(fmt::format("the item record is of item {}, item {} is expected here", record.index,
                         plan.items.size()));
    }
    if (record.offset != round_up(end, kDcpAlignment)) {
      reject(fmt::format("the item record puts its item at byte {}, not right behind the record",
                         record.offset));
    }
    if (checked_add(record.offset, record.length) > file_bytes) {
      reject(fmt::format("item '{}' ends at byte {}, the file at byte {}", fqn_of(record.path),
                         record.offset + record.length, file_bytes));
    }
  }

  void check_item(const File& file, const std::string& name, const ItemRecord& record) {
    const ArchivePlace place{name, fqn_of(record.path), record.offset, record.length};
    ArchiveCheck archive = check_archive(file, place);
    if (record.chunk) {
      check_chunk(record.chunk->dtype, record.chunk->box.sizes, place, archive);
    } else {
      check_has_pickle(place, archive);
    }
    for (Finding& finding : archive.findings) result_.findings.push_back(std::move(finding));
    for (PendingSum& sum : archive.sums) sums_.push_back(std::move(sum));
  }

  // Compares the data files with the manifest of the directory above, if there is one: a sound file may be of
  // another save. What the manifest says of `.metadata` does not count, since that file was lost.
  void check_manifest() {
    const fs::path directory = fs::canonical(directory_);
    if (!fs::exists(directory.parent_path() / kManifestName)) return;
    VerifyJob job = verify_manifest(directory.parent_path(), {directory.filename().string()});
    const auto is_data = [](const Finding& finding) {
      const bool is_unknown = finding.file == kManifestName && finding.kind == FindingKind::kMismatch;
      return is_unknown || finding.file.ends_with(".distcp");
    };
    for (Finding& finding : job.result.findings) {
      if (is_data(finding)) result_.findings.push_back(std::move(finding));
    }
    for (PendingSum& sum : job.sums) {
      if (is_data(sum.finding)) sums_.push_back(std::move(sum));
    }
  }

  static PlannedItem planned_of(const ItemRecord& record, std::uint64_t record_offset) {
    PlannedItem planned;
    planned.item.path = record.path;
    if (record.chunk) {
      planned.item.content = TensorChunk{record.chunk->dtype, record.chunk->shape, record.chunk->box};
    } else {
      planned.item.content = pickle::Value(pickle::None{});
    }
    planned.record_offset = record_offset;
    planned.offset = record.offset;
    planned.length = record.length;
    return planned;
  }

  void check_sums_of_data() {
    const unsigned threads = options_.threads != 0 ? options_.threads : default_threads();
    const std::vector<SumClaim> claims = claims_of(sums_);
    Progress progress("checking", bytes_of_claims(claims), options_.progress);
    const auto results = check_sums(claims, threads, [&](std::uint64_t bytes) { progress.add(bytes); });
    add_wrong_sums(std::move(sums_), results, result_.findings);
  }

  // Checks that the ranks agree about each tensor and have all of it together.
  void check_tensors() {
    std::map<std::string, std::vector<const PlannedItem*>> by_fqn;
    for (const DcpRankPlan& plan : result_.plans) {
      for (const PlannedItem& item : plan.items) by_fqn[fqn_of(item.item.path)].push_back(&item);
    }
    for (const auto& [fqn, items] : by_fqn) {
      const auto* first = std::get_if<TensorChunk>(&items.front()->item.content);
      ++(first != nullptr ? result_.tensors : result_.objects);
      check_tensor(fqn, items, first);
    }
  }

  void check_tensor(const std::string& fqn, const std::vector<const PlannedItem*>& items,
                    const TensorChunk* first) {
    std::vector<Box> boxes;
    for (const PlannedItem* item : items) {
      const auto* chunk = std::get_if<TensorChunk>(&item->item.content);
      const bool agrees =
          item->item.path == items.front()->item.path && (chunk == nullptr) == (first == nullptr) &&
          (chunk == nullptr || (chunk->dtype == first->dtype && chunk->shape == first->shape));
      if (!agrees || (chunk == nullptr && items.size() > 1)) {
        report(FindingKind::kMismatch, "", fqn, 0, 0, "two files have it and contradict each other");
        return;
      }
      if (chunk != nullptr) boxes.push_back(chunk->box);
    }
    if (first == nullptr) return;
    try {
      check_tiling(boxes, first->shape);
    } catch (const Error& e) {
      report(FindingKind::kHole, "", fqn, 0, 0, e.message());
    }
  }

  fs::path directory_;
  const RepairOptions& options_;
  RepairScan result_;
  std::vector<PendingSum> sums_;
};

}  // namespace

RepairScan scan_for_repair(const fs::path& directory, const RepairOptions& options) {
  return Scanner(directory, options).run();
}

std::vector<fs::path> find_repairable(const fs::path& path, bool force) {
  if (!fs::is_directory(path)) {
    throw Error(ErrorKind::kMissing, fs::exists(path) ? fmt::format("'{}' is not a directory", path.string())
                                                      : fmt::format("'{}' is not there", path.string()));
  }
  std::vector<fs::path> found;
  find_data(path, kSearchDepth, found);
  if (found.empty()) {
    throw Error(ErrorKind::kMissing, fmt::format("'{}' has no data files (*.distcp)", path.string()))
        .hint("a save that has not finished (*.incomplete) is searched only if it is named itself");
  }
  if (!force) std::erase_if(found, has_sound_metadata);
  if (const auto damaged = list_checkpoints(path).damaged; found.empty() && !damaged.empty()) {
    throw Error(ErrorKind::kMissing,
                fmt::format("'{}' holds an incomplete checkpoint, which has no data files "
                            "to rebuild it from: {}",
                            path.string(), to_string(damaged)))
        .hint("use an earlier checkpoint");
  }
  if (found.empty()) {
    throw Error(ErrorKind::kFailure,
                fmt::format("'{}' needs no repair: its .metadata can be read", path.string()))
        .hint("--force writes it anew anyway; 'accel verify' checks everything");
  }
  return found;
}

}  // namespace accel::ckpt
