#include "ckpt/tensor/strided_copy.hpp"

#include <algorithm>
#include <cstring>

namespace accel::ckpt {
namespace {

// Up to about this size, reading a gap is cheaper than a second call. At most kWaste times the wanted bytes
// are read.
constexpr std::uint64_t kGapBytes = 4096;
constexpr std::uint64_t kWaste = 4;

void scatter(const StridedCopy& copy, std::size_t depth, const std::byte* source, std::byte* target) {
  if (depth == copy.loops.size()) {
    std::memcpy(target, source, copy.run_bytes);
    return;
  }
  const CopyLoop& loop = copy.loops[depth];
  for (std::int64_t i = 0; i < loop.count; ++i) {
    scatter(copy, depth + 1, source + i * loop.source_step, target + i * loop.target_step);
  }
}

// The loop with the longest steps in the source. Each half of it reads from a shorter range of the source.
CopyLoop& widest_loop(StridedCopy& copy) {
  return *std::max_element(copy.loops.begin(), copy.loops.end(), [](const CopyLoop& a, const CopyLoop& b) {
    return (a.count > 1 ? a.source_step : -1) < (b.count > 1 ? b.source_step : -1);
  });
}

bool read_together(const StridedCopy& copy, std::size_t scratch_bytes) {
  const std::uint64_t span = copy.source_span();
  return span <= scratch_bytes && copy.run_bytes < kDirectRunBytes &&
         (span <= kGapBytes || span <= kWaste * copy.bytes());
}

}  // namespace

std::uint64_t StridedCopy::bytes() const {
  std::uint64_t total = run_bytes;
  for (const CopyLoop& loop : loops) total *= static_cast<std::uint64_t>(loop.count);
  return total;
}

std::uint64_t StridedCopy::source_span() const {
  std::uint64_t span = run_bytes;
  for (const CopyLoop& loop : loops) span += static_cast<std::uint64_t>((loop.count - 1) * loop.source_step);
  return span;
}

StridedCopy plan_strided_copy(const Dims& sizes, const Dims& source_strides, const Dims& target_strides,
                              std::uint64_t source, std::uint64_t target, std::uint64_t item_bytes) {
  StridedCopy copy{source, target, item_bytes, {}};
  const auto item = static_cast<std::int64_t>(item_bytes);
  std::vector<CopyLoop> inner_first;
  for (std::size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] == 1) continue;
    const CopyLoop loop{sizes[d], source_strides[d] * item, target_strides[d] * item};
    const auto run = static_cast<std::int64_t>(copy.run_bytes);
    if (inner_first.empty() && loop.source_step == run && loop.target_step == run) {
      copy.run_bytes *= static_cast<std::uint64_t>(loop.count);
      continue;
    }
    if (!inner_first.empty()) {
      CopyLoop& inner = inner_first.back();
      if (loop.source_step == inner.source_step * inner.count &&
          loop.target_step == inner.target_step * inner.count) {
        inner.count *= loop.count;
        continue;
      }
    }
    inner_first.push_back(loop);
  }
  copy.loops.assign(inner_first.rbegin(), inner_first.rend());
  return copy;
}

void execute_strided_copy(const StridedCopy& copy, ByteSource& source, std::span<std::byte> out,
                          std::span<std::byte> scratch) {
  if (copy.bytes() == copy.run_bytes) {
    source.read_at(copy.source, out.subspan(copy.target, copy.run_bytes));
    return;
  }
  if (read_together(copy, scratch.size())) {
    const std::span<std::byte> block = scratch.first(copy.source_span());
    source.read_at(copy.source, block);
    scatter(copy, 0, block.data(), out.data() + copy.target);
    return;
  }
  StridedCopy first = copy;
  StridedCopy second = copy;
  CopyLoop& loop = widest_loop(first);
  const std::int64_t half = loop.count / 2;
  second.source += static_cast<std::uint64_t>(half * loop.source_step);
  second.target += static_cast<std::uint64_t>(half * loop.target_step);
  widest_loop(second).count -= half;
  loop.count = half;
  execute_strided_copy(first, source, out, scratch);
  execute_strided_copy(second, source, out, scratch);
}

}  // namespace accel::ckpt
