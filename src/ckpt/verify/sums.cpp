#include "ckpt/verify/sums.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/files/file.hpp"
#include "base/host/threads.hpp"
#include "ckpt/io/crc32.hpp"

namespace accel::ckpt {
namespace {

// The bytes that a thread takes at a time, and those that it reads at a time. The latter fit its cache.
constexpr std::uint64_t kBlockBytes = std::uint64_t{4} << 20;
constexpr std::size_t kReadBytes = std::size_t{256} << 10;

// A part of a file that one thread sums. The blocks of a file are in order. No claim begins or ends within a
// block.
struct Block {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint32_t crc = 0;  // The CRC of the block; after accumulate() that of all from the start of its run.
  std::string error;      // Why the block could not be read, or empty.
};

struct SummedPath {
  std::filesystem::path path;
  std::vector<std::size_t> claims;  // Indices of the claims about the file.
  std::vector<Block> blocks;
};

std::uint64_t end_of(const SumClaim& claim) { return checked_add(claim.begin, claim.length); }

// The parts of the file that claims are about, cut where a claim begins or ends, and into blocks.
std::vector<Block> blocks_of(std::span<const SumClaim> claims, const std::vector<std::size_t>& indices) {
  // Maps an offset to the number of claims that begin there, less the number that end there.
  std::map<std::uint64_t, std::int64_t> depth_change;
  for (const std::size_t i : indices) {
    if (claims[i].length == 0) continue;
    ++depth_change[claims[i].begin];
    --depth_change[end_of(claims[i])];
  }
  std::vector<Block> blocks;
  std::int64_t depth = 0;
  std::uint64_t at = 0;
  for (const auto& [boundary, change] : depth_change) {
    while (depth > 0 && at < boundary) {
      const std::uint64_t end = std::min(boundary, at + kBlockBytes);
      blocks.push_back({at, end, 0, {}});
      at = end;
    }
    at = boundary;
    depth += change;
  }
  return blocks;
}

std::vector<SummedPath> group_by_file(std::span<const SumClaim> claims) {
  std::map<std::filesystem::path, std::vector<std::size_t>> by_path;
  for (std::size_t i = 0; i < claims.size(); ++i) by_path[claims[i].file].push_back(i);
  std::vector<SummedPath> files;
  files.reserve(by_path.size());
  for (auto& [path, indices] : by_path) {
    std::vector<Block> blocks = blocks_of(claims, indices);
    files.push_back({path, std::move(indices), std::move(blocks)});
  }
  return files;
}

void sum_block(Block& block, const File& file, std::span<std::byte> buffer) {
  for (std::uint64_t at = block.begin; at < block.end;) {
    const auto part = buffer.first(std::min<std::uint64_t>(buffer.size(), block.end - at));
    file.read_at(at, part);
    block.crc = crc32(part, block.crc);
    at += part.size();
  }
}

// Replaces the CRC of each block by the CRC from the start of its run to its end. The CRC of any part follows
// from two of these, so a claim costs the same however long it is.
void accumulate(std::vector<Block>& blocks) {
  for (std::size_t i = 1; i < blocks.size(); ++i) {
    Block& block = blocks[i];
    const Block& before = blocks[i - 1];
    if (before.end == block.begin) block.crc = crc32_combine(before.crc, block.crc, block.end - block.begin);
  }
}

std::optional<std::string> judge(const SumClaim& claim, const std::vector<Block>& blocks,
                                 const std::vector<std::size_t>& unreadable) {
  std::uint32_t found = 0;
  if (claim.length != 0) {
    const auto ends_by = [](const Block& block, std::uint64_t at) { return block.end < at; };
    const auto last = std::lower_bound(blocks.begin(), blocks.end(), end_of(claim), ends_by);
    const auto bad =
        std::lower_bound(unreadable.begin(), unreadable.end(), claim.begin,
                         [&](std::size_t index, std::uint64_t at) { return blocks[index].end <= at; });
    if (bad != unreadable.end() && blocks[*bad].begin < end_of(claim)) return blocks[*bad].error;
    // The block that ends where the claim begins, unless the claim begins its run.
    const auto before = std::lower_bound(blocks.begin(), last, claim.begin, ends_by);
    const bool begins_run = before == last || before->end != claim.begin;
    found = begins_run ? last->crc : crc32_combine(before->crc, last->crc, claim.length);
  }
  if (found == claim.crc32) return std::nullopt;
  return fmt::format("has CRC {:08x}, {:08x} is expected", found, claim.crc32);
}

}  // namespace

std::uint64_t bytes_of_claims(std::span<const SumClaim> claims) {
  std::uint64_t bytes = 0;
  for (const SummedPath& file : group_by_file(claims)) {
    for (const Block& block : file.blocks) bytes += block.end - block.begin;
  }
  return bytes;
}

std::vector<std::optional<std::string>> check_sums(std::span<const SumClaim> claims, unsigned threads,
                                                   const std::function<void(std::uint64_t)>& on_bytes) {
  std::vector<SummedPath> files = group_by_file(claims);
  std::vector<std::pair<std::size_t, std::size_t>> tasks;  // The file and the block of each task.
  for (std::size_t f = 0; f < files.size(); ++f) {
    for (std::size_t b = 0; b < files[f].blocks.size(); ++b) tasks.emplace_back(f, b);
  }

  std::atomic<std::size_t> next = 0;
  std::mutex progress;
  run_on_threads(threads, [&] {
    std::vector<std::byte> buffer(kReadBytes);
    std::optional<File> open;
    std::size_t open_index = files.size();
    for (std::size_t task = next++; task < tasks.size(); task = next++) {
      SummedPath& file = files[tasks[task].first];
      Block& block = file.blocks[tasks[task].second];
      try {
        if (open_index != tasks[task].first) {
          open.reset();
          open_index = files.size();
          open = File::open_read(file.path);
          open_index = tasks[task].first;
        }
        sum_block(block, *open, buffer);
      } catch (const Error& e) {
        block.error = e.message();
      }
      const std::lock_guard lock(progress);
      on_bytes(block.end - block.begin);
    }
  });

  std::vector<std::optional<std::string>> results(claims.size());
  for (SummedPath& file : files) {
    std::vector<std::size_t> unreadable;
    for (std::size_t b = 0; b < file.blocks.size(); ++b) {
      if (!file.blocks[b].error.empty()) unreadable.push_back(b);
    }
    accumulate(file.blocks);
    for (const std::size_t i : file.claims) results[i] = judge(claims[i], file.blocks, unreadable);
  }
  return results;
}

std::vector<SumClaim> claims_of(std::span<const PendingSum> sums) {
  std::vector<SumClaim> claims;
  claims.reserve(sums.size());
  for (const PendingSum& sum : sums) claims.push_back(sum.claim);
  return claims;
}

void add_wrong_sums(std::vector<PendingSum> sums, std::span<const std::optional<std::string>> results,
                    std::vector<Finding>& findings) {
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (!results[i]) continue;
    sums[i].finding.text += " " + *results[i];
    findings.push_back(std::move(sums[i].finding));
  }
}

}  // namespace accel::ckpt
