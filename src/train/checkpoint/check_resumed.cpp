#include "train/checkpoint/check_resumed.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "base/error.hpp"
#include "base/files/file.hpp"
#include "ckpt/io/summed_file.hpp"
#include "ckpt/store/manifest.hpp"

namespace accel::train {
namespace {

namespace fs = std::filesystem;

/// So many bytes of a file, or this fraction of it if that is more, are read again for its sum if the ranks
/// have not read them.
constexpr std::uint64_t kMostUnread = std::uint64_t{1} << 20;
constexpr std::uint64_t kMostUnreadFraction = 8;

/// A range that a rank has read, as it is sent to the others.
struct SentRange {
  std::uint64_t file = 0;  ///< The number of the file in the manifest.
  ckpt::SummedRange range;
};

/// Returns the ranges that this rank has read of the files of the manifest, as bytes for the other ranks. A
/// data file of the checkpoint that the manifest does not list is an Error of kind kCorrupt.
std::vector<std::byte> encoded(const fs::path& directory, const ckpt::Manifest& manifest,
                               ckpt::ReadSums& sums) {
  std::map<std::string, std::uint64_t> numbers;
  for (const auto& [name, file] : manifest.files) numbers.emplace(name, numbers.size());
  const fs::path root = directory.lexically_normal();
  std::vector<SentRange> sent;
  for (const auto& [path, ranges] : sums.take()) {
    const std::string name = fs::path(path).lexically_normal().lexically_relative(root).string();
    const auto number = numbers.find(name);
    if (number == numbers.end()) {
      if (name.starts_with("..") || !name.ends_with(".distcp")) continue;
      throw Error(ErrorKind::kCorrupt, fmt::format("'{}' holds tensors, and {} does not list it, so that "
                                                   "nothing says that it is the file that was saved",
                                                   path, ckpt::kManifestName))
          .hint(fmt::format("`accel verify {}` lists what is damaged", directory.string()));
    }
    for (const ckpt::SummedRange& range : ranges) sent.push_back({number->second, range});
  }
  const auto bytes = std::as_bytes(std::span(sent));
  return {bytes.begin(), bytes.end()};
}

/// Returns the ranges that all ranks have read, by the number of the file. Collective.
std::vector<std::vector<ckpt::SummedRange>> gathered(std::span<const std::byte> own, std::size_t files,
                                                     Group& group) {
  std::vector<std::vector<ckpt::SummedRange>> ranges(files);
  for (const std::vector<std::byte>& bytes : group.all_gather_bytes(own)) {
    std::vector<SentRange> sent(bytes.size() / sizeof(SentRange));
    std::memcpy(sent.data(), bytes.data(), sent.size() * sizeof(SentRange));
    for (const SentRange& one : sent) ranges.at(one.file).push_back(one.range);
  }
  return ranges;
}

/// The CRC of `path`; nothing if too much of it is unread.
std::optional<std::uint32_t> crc_of(const fs::path& path, std::vector<ckpt::SummedRange> ranges,
                                    std::uint64_t size, config::VerifyOnResume mode) {
  const std::uint64_t most = mode == config::VerifyOnResume::kFull
                                 ? std::numeric_limits<std::uint64_t>::max()
                                 : std::max(kMostUnread, size / kMostUnreadFraction);
  std::optional<File> file;
  return ckpt::crc_of_ranges(std::move(ranges), size, most, [&](std::uint64_t begin, std::uint64_t end) {
    if (!file) file = File::open_read(path);
    return ckpt::crc32_of(*file, begin, end);
  });
}

ckpt::Manifest manifest_in(const fs::path& directory) {
  const fs::path path = directory / ckpt::kManifestName;
  try {
    return ckpt::parse_manifest(path);
  } catch (Error& error) {
    error.add_context(fmt::format("'{}'", path.string()));
    throw;
  }
}

}  // namespace

std::vector<std::string> check_resumed(const fs::path& directory, ckpt::ReadSums& sums,
                                       config::VerifyOnResume mode, Group& group) {
  if (mode == config::VerifyOnResume::kNone) return {};
  const ckpt::Manifest manifest = manifest_in(directory);
  const auto ranges = gathered(encoded(directory, manifest, sums), manifest.files.size(), group);
  // The files of which a part was left out, and those that are damaged; each rank looks at its share.
  const std::size_t files = manifest.files.size();
  std::vector<double> found(2 * files);
  std::size_t number = 0;
  for (const auto& [name, listed] : manifest.files) {
    const std::size_t index = number++;
    if (static_cast<int>(index % static_cast<std::size_t>(group.size())) != group.rank()) continue;
    if (ranges[index].empty() && mode != config::VerifyOnResume::kFull) continue;
    const auto crc = crc_of(directory / name, ranges[index], listed.bytes, mode);
    if (!crc) found[index] = 1;
    if (crc && *crc != listed.crc32) found[files + index] = 1;
  }
  group.all_reduce_sum(found);
  std::vector<std::string> left_out;
  number = 0;
  for (const auto& [name, listed] : manifest.files) {
    if (found[files + number] > 0) {
      throw Error(ErrorKind::kCorrupt, fmt::format("'{}' is not the file that was saved: the CRC-32 of its "
                                                   "contents is not that in {}",
                                                   (directory / name).string(), ckpt::kManifestName))
          .hint(fmt::format("`accel verify {}` lists what is damaged", directory.string()));
    }
    if (found[number++] > 0) left_out.push_back(name);
  }
  return left_out;
}

}  // namespace accel::train
