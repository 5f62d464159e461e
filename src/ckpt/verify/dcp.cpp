#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/files/directory.hpp"
#include "base/files/file.hpp"
#include "base/host/threads.hpp"
#include "base/text.hpp"
#include "ckpt/dcp/metadata.hpp"
#include "ckpt/dcp/metadata_files.hpp"
#include "ckpt/dcp/transform.hpp"
#include "ckpt/io/endian.hpp"
#include "ckpt/io/file_cache.hpp"
#include "ckpt/io/zstd_source.hpp"
#include "ckpt/verify/archive.hpp"
#include "ckpt/verify/job.hpp"
#include "ckpt/zip/format.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kItemsAtATime = 32;
// The times of one save's files differ by as much as it takes to write or copy them. This allows for slow
// disks and for clocks that disagree.
constexpr double kTimeToleranceSeconds = 60;
constexpr double kSlowestBytesPerSecond = 50e6;

// One item: a chunk of a tensor, or an object.
struct Item {
  DcpRange where;
  const DcpTensor* tensor = nullptr;
  BoxView box;  // The box of the chunk, if the item is one.
  const DcpObject* object = nullptr;

  [[nodiscard]] std::string file() const { return std::string(where.file()); }
  [[nodiscard]] const std::string& fqn() const { return tensor != nullptr ? tensor->fqn : object->fqn; }
  // Several empty chunks may share one place, since `.metadata` keeps the place of only one of them.
  [[nodiscard]] bool has_elements() const { return tensor == nullptr || box.numel() != 0; }
};

struct FileState {
  std::uint64_t bytes = 0;
  std::int64_t modified_s = 0;
};

std::optional<FileState> state_of(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  return FileState{static_cast<std::uint64_t>(status.st_size), std::int64_t{status.st_mtim.tv_sec}};
}

std::vector<Item> items_of(const DcpMetadata& metadata) {
  std::vector<Item> items;
  for (const DcpTensor& tensor : metadata.tensors) {
    for (const DcpChunks* chunks : {&tensor.chunks, &tensor.copies}) {
      for (const DcpChunk chunk : *chunks) items.push_back({chunk.where, &tensor, chunk.box, nullptr});
    }
  }
  for (const DcpObject& object : metadata.objects) {
    items.push_back({object.where, nullptr, {}, &object});
    for (const DcpRange& copy : object.copies) items.push_back({copy, nullptr, {}, &object});
  }
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    const int order = a.where.source == b.where.source ? 0 : a.where.file().compare(b.where.file());
    if (order != 0) return order < 0;
    return std::tie(a.where.offset, a.where.length) < std::tie(b.where.offset, b.where.length);
  });
  return items;
}

// Whether a data file holds nothing but empty shards. torch writes those of every rank, but as they all lie
// at the tensor's end, `.metadata` has a place for only one of them. The function goes from archive to
// archive backwards, as the end of an archive says how long it is.
bool holds_no_elements(const fs::path& path) {
  constexpr std::uint64_t kTailBytes = zip::kZip64LocatorBytes + zip::kEndBytes;
  constexpr std::uint64_t kMostBytes = std::uint64_t{16} << 20;
  try {
    const File file = File::open_read(path);
    std::uint64_t end = file.size();
    if (end > kMostBytes) return false;
    while (end != 0) {
      if (end < kTailBytes + zip::kZip64EndBytes) return false;
      std::vector<std::byte> tail(kTailBytes);
      file.read_at(end - kTailBytes, tail);
      if (get_uint(tail, 0, 4) != zip::kZip64Locator) return false;
      const std::uint64_t before = get_uint(tail, 8, 8);
      if (before > end - kTailBytes - zip::kZip64EndBytes) return false;
      const std::uint64_t length = before + zip::kZip64EndBytes + kTailBytes;
      const ArchiveCheck archive = check_archive(file, {"", "", end - length, length});
      if (!archive.findings.empty() || !archive.pickle) return false;
      const std::optional<TorchTensor> tensor = torch_tensor_of(*archive.pickle);
      if (!tensor || checked_numel(tensor->shape) != 0) return false;
      end -= length;
    }
    return true;
  } catch (const Error&) {
    return false;
  }
}

class DcpVerifier {
 public:
  DcpVerifier(const fs::path& directory, unsigned threads, bool times_matter)
      : directory_(directory), threads_(threads), times_matter_(times_matter) {
    job_.result.path = directory;
    job_.result.kind = "dcp";
  }

  VerifyJob run() {
    if (!read_metadata()) return std::move(job_);
    job_.result.tensors = metadata_.tensors.size();
    for (const DcpTensor& tensor : metadata_.tensors) check_coverage(tensor);
    items_ = items_of(metadata_);
    check_files();
    check_places();
    check_items();
    return std::move(job_);
  }

 private:
  void report(FindingKind kind, std::string file, std::string tensor, std::uint64_t begin, std::uint64_t end,
              std::string text) {
    job_.result.findings.push_back({kind, std::move(file), std::move(tensor), begin, end, std::move(text)});
  }

  // Reads `.metadata`, or merges the files that the ranks wrote in a save without communication.
  bool read_metadata() {
    const std::vector<std::string> names = dcp_metadata_names(directory_);
    if (names.empty()) {
      report(FindingKind::kMissingFile, ".metadata", "", 0, 0,
             fmt::format("is not there, so nothing says what is in the data files; if accel wrote them, this "
                         "rebuilds it: accel repair {}",
                         shell_word(directory_.string())));
    }
    std::vector<DcpMetadata> parts;
    for (const std::string& name : names) read_metadata_file(name, parts);
    if (!job_.result.findings.empty()) return false;
    try {
      check_rank_metadata_complete(directory_);
    } catch (const Error& e) {
      report(FindingKind::kMissingFile, "", "", 0, 0, e.message());
      return false;
    }
    const auto on_disagreement = [&](const std::string& fqn, const std::string& text) {
      report(FindingKind::kMismatch, "", fqn, 0, 0, text);
    };
    metadata_ = names.front() != ".metadata" ? merge_rank_metadata(std::move(parts), on_disagreement)
                                             : std::move(parts.front());
    return job_.result.findings.empty();
  }

  void read_metadata_file(const std::string& name, std::vector<DcpMetadata>& parts) {
    const std::optional<FileState> state = state_of(directory_ / name);
    if (!state) return report(FindingKind::kBroken, name, "", 0, 0, "is not a regular file");
    metadata_modified_s_ = std::max(metadata_modified_s_, state->modified_s);
    ++job_.result.files;
    job_.result.bytes += state->bytes;
    const auto broken = corruption_in([&] { parts.push_back(parse_dcp_metadata_file(directory_ / name)); });
    if (broken) report(FindingKind::kBroken, name, "", 0, 0, broken->message());
  }

  void check_coverage(const DcpTensor& tensor) {
    if (tensor.dtype == DType::kUnknown) {
      report(FindingKind::kBroken, ".metadata", tensor.fqn, 0, 0,
             fmt::format("it is of the unknown dtype {}, whose size nobody knows", tensor.unknown_dtype));
    }
    const auto boxes = tensor.chunks.boxes();
    std::int64_t covered = 0;
    for (const BoxView& box : boxes) covered = checked_add(covered, box.numel());
    try {
      check_disjoint(boxes);
    } catch (const Error& e) {
      report(FindingKind::kOverlap, ".metadata", tensor.fqn, 0, 0, e.message());
      return;
    }
    const std::int64_t numel = checked_numel(tensor.shape);
    if (covered == numel) return;
    report(FindingKind::kHole, ".metadata", tensor.fqn, 0, 0,
           fmt::format("its chunks cover {} of {} elements", covered, numel));
  }

  // Checks that the files are there and no others, and that their times agree.
  void check_files() {
    FileCache names(directory_);
    for (const Item& item : items_) {
      if (files_.contains(item.where.file())) continue;
      const std::string name = item.file();
      std::error_code unreadable;
      const fs::file_status status = fs::status(directory_ / name, unreadable);
      if (fs::exists(status) && !fs::is_regular_file(status)) {
        files_[name] = std::nullopt;
        report(FindingKind::kBroken, name, "", 0, 0, "is not a regular file");
        continue;
      }
      try {
        (void)names.open(name);
        files_[name] = state_of(directory_ / name);
      } catch (const Error& e) {
        files_[name] = std::nullopt;
        if (e.kind() == ErrorKind::kCorrupt) {
          report(FindingKind::kBroken, ".metadata", item.fqn(), 0, 0, e.message());
        } else {
          report(FindingKind::kMissingFile, name, "", 0, 0,
                 e.kind() == ErrorKind::kMissing ? missing_text(name) : e.message());
        }
      }
      if (const auto& state = files_[name]) {
        ++job_.result.files;
        job_.result.bytes += state->bytes;
      }
    }
    check_stale();
    if (times_matter_) check_times();
  }

  std::string missing_text(const std::string& name) {
    const auto count = std::count_if(items_.begin(), items_.end(),
                                     [&](const Item& item) { return item.where.file() == name; });
    return fmt::format("is not there; .metadata puts {} item{} into it", count, count == 1 ? "" : "s");
  }

  // Reports data files that nothing refers to: they are left of a save by more ranks, or of one that a crash
  // cut off. A rank without items leaves an empty file, and one without elements a file of empty shards.
  void check_stale() {
    for (const fs::directory_entry& entry : fs::directory_iterator(directory_)) {
      const std::string name = entry.path().filename().string();
      if (entry.path().extension() != ".distcp" || files_.contains(name)) continue;
      const std::optional<FileState> state = state_of(entry.path());
      if (!state || state->bytes == 0 || holds_no_elements(entry.path())) continue;
      report(FindingKind::kStale, name, "", 0, 0,
             fmt::format("has {} bytes, but .metadata does not refer to it; another save left it",
                         state->bytes));
    }
  }

  void check_times() {
    const double tolerance =
        kTimeToleranceSeconds + static_cast<double>(job_.result.bytes) / kSlowestBytesPerSecond;
    std::int64_t newest = 0;
    for (const auto& [name, state] : files_) newest = state ? std::max(newest, state->modified_s) : newest;
    for (const auto& [name, state] : files_) {
      if (!state) continue;
      const auto after_metadata = static_cast<double>(state->modified_s - metadata_modified_s_);
      const auto before_newest = static_cast<double>(newest - state->modified_s);
      if (after_metadata > tolerance) {
        report(FindingKind::kTimes, name, "", 0, 0,
               fmt::format("was written {} after .metadata: perhaps by a later save that did not finish",
                           format_duration(after_metadata)));
      } else if (before_newest > tolerance) {
        report(FindingKind::kTimes, name, "", 0, 0,
               fmt::format("was written {} before the newest of the data files: perhaps by another save",
                           format_duration(before_newest)));
      }
    }
  }

  // Checks that items lie within their file and do not overlap.
  void check_places() {
    const Item* before = nullptr;
    std::uint64_t reached = 0;
    for (const Item& item : items_) {
      const DcpRange& where = item.where;
      const auto& state = files_.find(where.file())->second;
      if (!state) continue;
      std::uint64_t end = 0;
      if (__builtin_add_overflow(where.offset, where.length, &end) || end > state->bytes) {
        report(FindingKind::kTruncated, item.file(), item.fqn(), where.offset, end,
               fmt::format("the file ends at byte {}", state->bytes));
        continue;
      }
      sound_.push_back(&item);
      if (!item.has_elements()) continue;
      if (before != nullptr && before->where.file() == where.file() && where.offset < reached) {
        report(FindingKind::kOverlap, item.file(), item.fqn(), where.offset, end,
               fmt::format("'{}' has bytes {} to {} of the file", before->fqn(), before->where.offset,
                           before->where.offset + before->where.length));
      }
      if (before == nullptr || before->where.file() != where.file() || end > reached) {
        before = &item;
        reached = end;
      }
    }
  }

  void check_items() {
    std::atomic<std::size_t> next = 0;
    std::mutex merging;
    run_on_threads(threads_, [&] {
      FileCache files(directory_, 4);
      VerifyJob part;
      for (std::size_t begin = next.fetch_add(kItemsAtATime); begin < sound_.size();
           begin = next.fetch_add(kItemsAtATime)) {
        for (std::size_t i = begin; i < std::min(begin + kItemsAtATime, sound_.size()); ++i) {
          check_item(*sound_[i], files, part);
        }
      }
      const std::lock_guard lock(merging);
      std::move(part.result.findings.begin(), part.result.findings.end(),
                std::back_inserter(job_.result.findings));
      std::move(part.sums.begin(), part.sums.end(), std::back_inserter(job_.sums));
    });
    if (unknown_transforms_ != 0) {
      job_.result.notes.push_back(
          fmt::format("{} items have a transform that accel does not know, and were not verified",
                      unknown_transforms_.load()));
    }
  }

  void check_item(const Item& item, FileCache& files, VerifyJob& part) {
    const DcpRange& where = item.where;
    const std::string file = item.file();
    const ArchivePlace place{file, item.fqn(), where.offset, where.length};
    if (!has_known_transform(where)) {
      ++unknown_transforms_;
      return;
    }
    ArchiveCheck archive;
    if (!is_zstd(where)) {
      archive = check_archive(files.open(file), place);
    } else {
      ZstdSource source(files.open_own(file), {where.offset, where.length});
      archive = check_archive(source, place);
    }
    if (item.tensor != nullptr) check_chunk(item.tensor->dtype, item.box.sizes, place, archive);
    if (item.tensor == nullptr) check_has_pickle(place, archive);
    std::move(archive.findings.begin(), archive.findings.end(), std::back_inserter(part.result.findings));
    std::move(archive.sums.begin(), archive.sums.end(), std::back_inserter(part.sums));
  }

  fs::path directory_;
  unsigned threads_;
  bool times_matter_;
  VerifyJob job_;
  DcpMetadata metadata_;
  std::int64_t metadata_modified_s_ = 0;
  std::vector<Item> items_;  // The items, sorted by file and offset.
  // The files that `.metadata` refers to; nothing for one that is not there.
  std::map<std::string, std::optional<FileState>, std::less<>> files_;
  std::atomic<std::size_t> unknown_transforms_ = 0;
  std::vector<const Item*> sound_;  // The items that lie within their files.
};

}  // namespace

VerifyJob verify_dcp(const fs::path& directory, unsigned threads, bool times_matter) {
  return DcpVerifier(directory, threads, times_matter).run();
}

}  // namespace accel::ckpt
