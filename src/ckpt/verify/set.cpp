#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/files/directory.hpp"
#include "base/files/file.hpp"
#include "base/files/json_text.hpp"
#include "ckpt/io/file_cache.hpp"
#include "ckpt/read/checkpoint.hpp"
#include "ckpt/read/rank_files.hpp"
#include "ckpt/safetensors/header.hpp"
#include "ckpt/store/weight_index.hpp"
#include "ckpt/torch/file.hpp"
#include "ckpt/verify/job.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;

// The tensors that a file of a set has: name to size in bytes.
using Contents = std::map<std::string, std::uint64_t>;

class SetVerifier {
 public:
  SetVerifier(const fs::path& path, Kind kind)
      : path_(path), directory_(fs::is_directory(path) ? path : parent_of(path)), kind_(kind) {
    job_.result.path = path;
    job_.result.kind = name_of(kind);
  }

  VerifyJob run() {
    // A directory may have the same weights in both forms.
    if (kind_ == Kind::kSafetensorsSharded) check_form(".safetensors");
    if (kind_ == Kind::kSafetensorsSharded || kind_ == Kind::kTorchSharded) check_form(".bin");
    if (models_ > 1) {
      job_.result.notes.push_back(
          fmt::format("the directory has {} models; each index was compared with its files", models_));
    } else if (job_.result.findings.empty()) {
      check_as_checkpoint();  // A set whose index contradicts its files cannot be opened.
    }
    count_files();
    return std::move(job_);
  }

 private:
  void check_form(const std::string& suffix) {
    const std::vector<std::string> indexes = index_names_in(directory_, suffix);
    for (const std::string& index : indexes) check_index(index, suffix);
    if (indexes.empty()) check_numbers(suffix);
    models_ += indexes.size();
  }

  void report(FindingKind kind, const std::string& file, const std::string& tensor, std::string text) {
    job_.result.findings.push_back({kind, file, tensor, 0, 0, std::move(text)});
  }

  // The names of the files that make the set.
  [[nodiscard]] std::vector<std::string> members() const {
    std::set<std::string> names = indexed_;
    if (kind_ == Kind::kLocal || kind_ == Kind::kDtensor) {
      for (const auto& [rank, name] : rank_files_of(path_).files) names.insert(name);
    } else {
      const std::string suffix = kind_ == Kind::kTorchSharded ? ".bin" : ".safetensors";
      const bool has_index = std::any_of(names.begin(), names.end(),
                                         [&](const std::string& name) { return name.ends_with(suffix); });
      if (!has_index) {
        for (const std::string& name : files_in(directory_, "", suffix)) names.insert(name);
      }
    }
    return {names.begin(), names.end()};
  }

  void count_files() {
    (void)corruption_in([&] {  // If a rank has two files, that is a finding.
      for (const std::string& name : members()) {
        std::error_code missing;
        const std::uintmax_t bytes = fs::file_size(directory_ / name, missing);
        if (missing) continue;
        ++job_.result.files;
        job_.result.bytes += bytes;
      }
    });
  }

  [[nodiscard]] bool can_be_read(const std::string& name) const {
    try {
      const File file = File::open_read(directory_ / name);
      if (name.ends_with(".safetensors")) {
        (void)read_safetensors_header(file);
      } else {
        (void)TorchFile(FileWindow(file, 0, file.size())).read_pickle();
      }
      return true;
    } catch (const Error& e) {
      return e.kind() != ErrorKind::kCorrupt;
    }
  }

  // Checks a set without an index: the names of its files say which files there should be.
  void check_numbers(const std::string& suffix) {
    std::set<std::pair<std::string, int>> seen;
    for (const std::string& name : files_in(directory_, "", suffix)) {
      std::optional<WeightShard> shard = parse_weight_shard(name);
      if (!shard || !seen.emplace(shard->stem, shard->count).second) continue;
      for (shard->number = 1; shard->number <= shard->count; ++shard->number) {
        const std::string other = to_string(*shard);
        if (fs::exists(directory_ / other)) continue;
        report(FindingKind::kMissingFile, other, "", fmt::format("is not there, but {} is", name));
      }
    }
  }

  // The tensors of one file; nothing if it cannot be read, which the verification of the file itself reports.
  [[nodiscard]] std::optional<Contents> contents_of(const std::string& file) const {
    try {
      const std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(directory_ / file);
      Contents contents;
      for (const TensorEntry& tensor : checkpoint->tensors()) {
        contents[tensor.name] = checked_nbytes(tensor.shape, item_bytes(tensor.dtype));
      }
      return contents;
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  void check_index(const std::string& name, const std::string& suffix) {
    std::optional<WeightIndex> index;
    try {
      index = read_weight_index(directory_ / name);
    } catch (const Error& e) {
      report(FindingKind::kBroken, name, "", e.message());
      return;
    }
    std::map<std::string, std::string> seen;  // Maps a tensor to the first file that has it.
    std::uint64_t total = 0;
    bool complete = true;
    FileCache files(directory_);
    for (const std::string& file : index->file_names()) {
      indexed_.insert(file);
      try {
        (void)files.open(file);
      } catch (const Error& e) {
        const bool missing = e.kind() == ErrorKind::kMissing;
        report(missing ? FindingKind::kMissingFile : FindingKind::kBroken, missing ? file : name, "",
               missing ? fmt::format("is not there, but {} names it", name) : e.message());
        complete = false;
        continue;
      }
      const std::optional<Contents> contents = contents_of(file);
      if (!contents) {
        complete = false;
        continue;
      }
      check_file(name, *index, file, *contents, seen);
      for (const auto& [tensor, bytes] : *contents) total = checked_add(total, bytes);
    }
    check_stale(name, *index, suffix);
    for (const auto& entry : seen) tensors_.insert(entry.first);
    job_.result.tensors = tensors_.size();
    if (complete && suffix == ".safetensors") check_total(name, total);
  }

  // Reports files that are named like those of the index's model, but that the index does not name. Others
  // are models of their own, such as Mistral's `consolidated.safetensors`.
  void check_stale(const std::string& name, const WeightIndex& index, const std::string& suffix) {
    const auto stem_of = [&](const std::string& file) {
      const std::optional<WeightShard> shard = parse_weight_shard(file);
      return shard ? shard->stem : file.substr(0, file.size() - std::min(file.size(), suffix.size()));
    };
    std::set<std::string> stems = {
        stem_of(name.substr(0, name.size() - std::string_view(".index.json").size()))};
    std::set<std::string> named;
    for (const auto& [tensor, file] : index.files) {
      named.insert(file);
      stems.insert(stem_of(file));
    }
    for (const std::string& file : files_in(directory_, "", suffix)) {
      if (!named.contains(file) && stems.contains(stem_of(file)))
        report(FindingKind::kStale, file, "", fmt::format("is not named by {}", name));
    }
  }

  void check_file(const std::string& name, const WeightIndex& index, const std::string& file,
                  const Contents& contents, std::map<std::string, std::string>& seen) {
    for (const auto& [tensor, bytes] : contents) {
      const auto [first, is_new] = seen.emplace(tensor, file);
      if (!is_new) {
        report(FindingKind::kOverlap, file, tensor, fmt::format("{} has it, too", first->second));
      }
      const auto entry = index.files.find(tensor);
      if (entry == index.files.end()) {
        report(FindingKind::kMismatch, file, tensor, fmt::format("{} does not name it", name));
      } else if (entry->second != file) {
        report(FindingKind::kMismatch, file, tensor,
               fmt::format("{} says that {} has it", name, entry->second));
      }
    }
    for (const auto& [tensor, expected] : index.files) {
      if (expected != file || contents.contains(tensor)) continue;
      report(FindingKind::kHole, file, tensor,
             fmt::format("is not in the file, but {} says that it is", name));
    }
  }

  void check_total(const std::string& name, std::uint64_t total) {
    const auto document = read_json_file(directory_ / name);
    const auto metadata = document.find("metadata");
    if (metadata == document.end() || !metadata->is_object() || !metadata->contains("total_size")) return;
    const nlohmann::json& size = metadata->at("total_size");
    if (size.is_number() && size.get<double>() == static_cast<double>(total)) return;
    report(FindingKind::kStale, name, "",
           fmt::format("says that all tensors have {} bytes, they have {}", size.dump(), total));
  }

  // Opens the set as any reader would, and checks that each tensor is there and covered once.
  void check_as_checkpoint() {
    try {
      // The verification of a broken file itself reports it.
      for (const std::string& name : members()) {
        if (!can_be_read(name)) return;
      }
      const std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(path_);
      job_.result.tensors = checkpoint->tensors().size();
      for (std::size_t i = 0; i < checkpoint->tensors().size(); ++i) check_tensor(*checkpoint, i);
    } catch (const Error& e) {
      if (is_by_signal(e.kind()) || e.kind() == ErrorKind::kMemory) throw;
      // What accel does not read, such as flat parameters of FSDP1, is not a defect.
      if (e.kind() == ErrorKind::kFailure) return job_.result.notes.push_back(e.message());
      report(e.kind() == ErrorKind::kMissing ? FindingKind::kMissingFile : FindingKind::kBroken, "", "",
             e.message());
    }
  }

  void check_tensor(Checkpoint& checkpoint, std::size_t index) {
    const std::string& name = checkpoint.tensors()[index].name;
    try {
      checkpoint.check_coverage(index);
      (void)checkpoint.locate(index);
    } catch (const Error& e) {
      if (e.kind() == ErrorKind::kFailure) {
        job_.result.notes.push_back(e.message());
      } else {
        report(FindingKind::kHole, "", name, e.message());
      }
    }
  }

  fs::path path_;
  fs::path directory_;
  Kind kind_;
  VerifyJob job_;
  std::size_t models_ = 0;         // The number of indexes.
  std::set<std::string> indexed_;  // The files that an index names.
  std::set<std::string> tensors_;  // The tensors that the indexed files have.
};

}  // namespace

VerifyJob verify_set(const fs::path& path, Kind kind) { return SetVerifier(path, kind).run(); }

}  // namespace accel::ckpt
