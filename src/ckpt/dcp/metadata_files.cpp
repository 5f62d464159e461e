#include "ckpt/dcp/metadata_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/error_context.hpp"
#include "base/files/file.hpp"
#include "base/metadata_limit.hpp"
#include "ckpt/dcp/parse_metadata.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;

// The rank in a name such as "__12{rest}". Sets `rest` to what follows the digits.
std::optional<std::uint32_t> rank_in(std::string_view name, std::string_view& rest) {
  if (!name.starts_with("__")) return std::nullopt;
  std::uint32_t rank = 0;
  const char* begin = name.data() + 2;
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), rank);
  if (error != std::errc() || (*begin == '0' && end - begin > 1)) return std::nullopt;
  rest = name.substr(static_cast<std::size_t>(end - name.data()));
  return rank;
}

struct RankFiles {
  std::set<std::uint32_t> metadata;
  std::set<std::uint32_t> data;
};

RankFiles rank_files_in(const fs::path& directory) {
  RankFiles found;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    std::string_view rest;
    const std::optional<std::uint32_t> rank = rank_in(name, rest);
    if (!rank) continue;
    if (rest == ".metadata") found.metadata.insert(*rank);
    if (rest.starts_with('_') && rest.ends_with(".distcp")) found.data.insert(*rank);
  }
  return found;
}

DcpMetadata read_file(const fs::path& path) {
  return with_path(path, [&] { return parse_dcp_metadata_file(path); });
}

// Checks that every rank up to the last one with a file has a metadata file.
void check_complete(const fs::path& directory, const RankFiles& files) {
  const std::uint32_t last =
      std::max(*files.metadata.rbegin(), files.data.empty() ? 0 : *files.data.rbegin());
  for (std::uint32_t rank = 0; rank <= last; ++rank) {
    if (files.metadata.contains(rank)) continue;
    throw Error(ErrorKind::kMissing,
                fmt::format("'{}' was saved by ranks 0 to {}, each on its own, but has no __{}.metadata",
                            directory.string(), last, rank))
        .hint("the save did not finish, or not all of its files were copied");
  }
}

struct BoxLess {
  bool operator()(BoxView a, BoxView b) const {
    if (std::ranges::equal(a.offsets, b.offsets))
      return std::ranges::lexicographical_compare(a.sizes, b.sizes);
    return std::ranges::lexicographical_compare(a.offsets, b.offsets);
  }
};

class RankMerger {
 public:
  explicit RankMerger(const RankDisagreement& on_disagreement) : on_disagreement_(on_disagreement) {}

  void add(DcpMetadata rank) {
    if (result_.version.empty()) result_.version = rank.version;
    std::move(rank.files.begin(), rank.files.end(), std::back_inserter(result_.files));
    std::sort(rank.tensors.begin(), rank.tensors.end(),
              [](const DcpTensor& a, const DcpTensor& b) { return a.position < b.position; });
    for (DcpTensor& tensor : rank.tensors) add_tensor(std::move(tensor));
    for (const DcpObject& object : rank.objects) {
      if (tensors_.contains(object.fqn)) {
        report_kind(object.fqn);
        continue;
      }
      const auto [first, is_new] = objects_.try_emplace(object.fqn, object);
      if (!is_new) first->second.copies.push_back(object.where);
    }
    ++ranks_;
  }

  DcpMetadata finish() {
    for (auto& [fqn, tensor] : tensors_) {
      set_apart_copies(tensor);
      result_.tensors.push_back(std::move(tensor));
    }
    for (auto& [fqn, object] : objects_) result_.objects.push_back(std::move(object));
    return std::move(result_);
  }

 private:
  void add_tensor(DcpTensor tensor) {
    if (objects_.contains(tensor.fqn)) return report_kind(tensor.fqn);
    tensor.position = tensors_.size();
    std::string fqn = tensor.fqn;
    const auto [known, is_new] = tensors_.try_emplace(std::move(fqn), std::move(tensor));
    if (is_new) return;
    DcpTensor& first = known->second;
    if (first.dtype != tensor.dtype || first.shape != tensor.shape) {
      report(first.fqn,
             fmt::format("is {} {} on one rank, {} {} on rank {}", torch_name(first.dtype),
                         to_string(first.shape), torch_name(tensor.dtype), to_string(tensor.shape), ranks_));
      return;
    }
    for (const DcpChunk chunk : tensor.chunks) first.chunks.add(chunk);
  }

  static void set_apart_copies(DcpTensor& tensor) {
    std::set<BoxView, BoxLess> known;
    DcpChunks chunks;
    for (const DcpChunk chunk : tensor.chunks)
      (known.insert(chunk.box).second ? chunks : tensor.copies).add(chunk);
    tensor.chunks = std::move(chunks);
  }

  void report_kind(const std::string& fqn) const {
    report(fqn, fmt::format("is a tensor on one rank and an object on another, found on rank {}", ranks_));
  }

  void report(const std::string& fqn, const std::string& text) const {
    if (!on_disagreement_) throw_corrupt(fmt::format("'{}' {}", fqn, text));
    on_disagreement_(fqn, text);
  }

  const RankDisagreement& on_disagreement_;

  DcpMetadata result_;
  std::map<std::string, DcpTensor> tensors_;
  std::map<std::string, DcpObject> objects_;
  std::size_t ranks_ = 0;
};

}  // namespace

DcpMetadata parse_dcp_metadata_file(const fs::path& path) {
  const std::uint64_t bytes = File::open_read(path).size();
  check_metadata_bytes("the file", bytes);
  return parse_dcp_metadata(read_whole_file(path, bytes));
}

void check_rank_metadata_complete(const fs::path& directory) {
  if (fs::exists(directory / ".metadata")) return;
  const RankFiles files = rank_files_in(directory);
  if (!files.metadata.empty()) check_complete(directory, files);
}

bool has_dcp_metadata(const fs::path& directory) {
  if (fs::exists(directory / ".metadata")) return true;
  return fs::is_directory(directory) && !rank_files_in(directory).metadata.empty();
}

std::vector<std::string> dcp_metadata_names(const fs::path& directory) {
  if (fs::exists(directory / ".metadata")) return {".metadata"};
  std::vector<std::string> names;
  for (const std::uint32_t rank : rank_files_in(directory).metadata)
    names.push_back(fmt::format("__{}.metadata", rank));
  return names;
}

DcpMetadata read_dcp_metadata(const fs::path& directory) {
  if (fs::exists(directory / ".metadata")) return read_file(directory / ".metadata");
  const RankFiles files = fs::is_directory(directory) ? rank_files_in(directory) : RankFiles();
  if (files.metadata.empty()) {
    throw Error(ErrorKind::kMissing,
                fmt::format("'{}' is not a DCP checkpoint: it has no .metadata", directory.string()))
        .hint("a save that did not finish has no .metadata");
  }
  check_complete(directory, files);
  std::vector<DcpMetadata> ranks;
  std::uint64_t bytes = 0;
  for (const std::uint32_t rank : files.metadata) {
    const fs::path path = directory / fmt::format("__{}.metadata", rank);
    bytes += File::open_read(path).size();
    check_metadata_bytes(fmt::format("'{}' and those of the ranks before", path.string()), bytes);
    ranks.push_back(read_file(path));
  }
  return with_context("", directory.string(), [&] { return merge_rank_metadata(std::move(ranks)); });
}

DcpMetadata merge_rank_metadata(std::vector<DcpMetadata> ranks, const RankDisagreement& on_disagreement) {
  RankMerger merger(on_disagreement);
  for (DcpMetadata& rank : ranks) merger.add(std::move(rank));
  return merger.finish();
}

}  // namespace accel::ckpt
