#include "ranks/shared_collectives.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace accel {
namespace {

std::size_t pieces(std::size_t bytes, std::size_t piece) {
  // There is at least one piece: it carries the header and synchronizes the ranks.
  return std::max<std::size_t>(1, (bytes + piece - 1) / piece);
}

/// Copies like memcpy, which does not allow null pointers even for no bytes.
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

CollectiveHeader header_of(CollectiveKind kind, std::string_view element, std::size_t elements) {
  CollectiveHeader header;
  header.kind = kind;
  header.elements = elements;
  header.set_element(element);
  return header;
}

}  // namespace

struct SharedCollectives::Range {
  std::size_t begin = 0;
  std::size_t end = 0;

  [[nodiscard]] std::size_t size() const { return end - begin; }
  /// Returns piece `index` of those with `length`, which is empty past the end.
  [[nodiscard]] Range piece(std::size_t index, std::size_t length) const {
    return {std::min(end, begin + index * length), std::min(end, begin + (index + 1) * length)};
  }
};

/// Returns the part of `rank` in a tensor. The ranks' parts differ by one element at most.
SharedCollectives::Range SharedCollectives::part_of(std::size_t elements, int rank) const {
  const auto size = static_cast<std::size_t>(ranks_.size());
  const auto number = static_cast<std::size_t>(rank);
  const std::size_t least = elements / size;
  const std::size_t longer = elements % size;
  const std::size_t begin = number * least + std::min(number, longer);
  return {begin, begin + least + (number < longer ? 1 : 0)};
}

/// Fills and posts each step's slot, as far ahead of reading as there are free slots.
template <class Fill, class Read>
void SharedCollectives::run_steps(std::size_t steps, Fill fill, Read read) {
  std::size_t posted = 0;
  for (std::size_t step = 0; step < steps; ++step) {
    while (posted < steps && posted < step + ranks_.slots() && (posted == step || ranks_.can_post())) {
      fill(posted, ranks_.slot().data());
      ranks_.post();
      ++posted;
    }
    read(step);
    ranks_.release();
  }
}

/// `place(rank)` returns the bytes of the part of `rank`, or where they belong. A part has at most
/// `longest_bytes`.
template <class Place>
void SharedCollectives::gather_parts(std::size_t longest_bytes, Place place) {
  const std::size_t piece_bytes = ranks_.slot_bytes();
  const auto piece_of = [&](int rank, std::size_t step) {
    const std::span<std::byte> part = place(rank);
    const Range range = Range{0, part.size()}.piece(step, piece_bytes);
    return part.subspan(range.begin, range.size());
  };
  run_steps(
      pieces(longest_bytes, piece_bytes),
      [&](std::size_t step, std::byte* slot) {
        const std::span<std::byte> piece = piece_of(ranks_.rank(), step);
        copy_bytes(slot, piece.data(), piece.size());
      },
      [&](std::size_t step) {
        // Each rank begins with the next one, so that not all of them read the same slot.
        for (int i = 1; i < ranks_.size(); ++i) {
          const int rank = (ranks_.rank() + i) % ranks_.size();
          const std::byte* slot = ranks_.slot_of(rank).data();
          const std::span<std::byte> piece = piece_of(rank, step);
          copy_bytes(piece.data(), slot, piece.size());
        }
      });
}

void SharedCollectives::scatter_parts(const std::byte* in, std::byte* out, std::size_t elements,
                                      Element element, Reduction reduction) {
  const std::size_t element_bytes = bytes_of(element);
  const auto size = static_cast<std::size_t>(ranks_.size());
  // A slot holds a piece of each rank's part, in whole cache lines.
  const std::size_t piece_bytes = ranks_.slot_bytes() / size / 64 * 64;
  const std::size_t piece_elements = piece_bytes / element_bytes;
  const Range own = part_of(elements, ranks_.rank());
  std::vector<const std::byte*> sources(size);
  run_steps(
      pieces(part_of(elements, 0).size(), piece_elements),
      [&](std::size_t step, std::byte* slot) {
        for (int rank = 0; rank < ranks_.size(); ++rank) {
          if (rank == ranks_.rank()) continue;
          const Range range = part_of(elements, rank).piece(step, piece_elements);
          copy_bytes(slot + static_cast<std::size_t>(rank) * piece_bytes, in + range.begin * element_bytes,
                     range.size() * element_bytes);
        }
      },
      [&](std::size_t step) {
        const Range range = own.piece(step, piece_elements);
        const std::size_t place = static_cast<std::size_t>(ranks_.rank()) * piece_bytes;
        for (int rank = 0; rank < ranks_.size(); ++rank) {
          sources[static_cast<std::size_t>(rank)] =
              rank == ranks_.rank() ? in + range.begin * element_bytes : ranks_.slot_of(rank).data() + place;
        }
        reduce_in_order(element, reduction, sources, out + (range.begin - own.begin) * element_bytes,
                        range.size());
      });
}

void SharedCollectives::all_gather(std::span<const std::byte> in, std::span<std::byte* const> outs,
                                   std::string_view element, std::size_t element_bytes, Timeout timeout) {
  ranks_.begin(header_of(CollectiveKind::kAllGather, element, in.size() / element_bytes), timeout);
  std::byte* own = outs[static_cast<std::size_t>(ranks_.rank())];
  if (own != in.data()) copy_bytes(own, in.data(), in.size());
  gather_parts(in.size(),
               [&](int rank) { return std::span(outs[static_cast<std::size_t>(rank)], in.size()); });
}

void SharedCollectives::reduce_scatter(std::span<const std::byte> in, std::span<std::byte> out,
                                       Element element, Reduction reduction, Timeout timeout) {
  const std::size_t elements = in.size() / bytes_of(element);
  CollectiveHeader header = header_of(CollectiveKind::kReduceScatter, name_of(element), elements);
  header.reduction = static_cast<std::uint32_t>(reduction);
  ranks_.begin(header, timeout);
  scatter_parts(in.data(), out.data(), elements, element, reduction);
}

void SharedCollectives::all_reduce(std::span<std::byte> data, Element element, Reduction reduction,
                                   Timeout timeout) {
  const std::size_t element_bytes = bytes_of(element);
  const std::size_t elements = data.size() / element_bytes;
  CollectiveHeader header = header_of(CollectiveKind::kAllReduce, name_of(element), elements);
  header.reduction = static_cast<std::uint32_t>(reduction);
  ranks_.begin(header, timeout);
  const std::size_t piece_bytes = ranks_.slot_bytes();
  if (ranks_.size() > 2 && data.size() > piece_bytes) {
    // Every rank adds up one part and hands it out. This takes less time than if every rank reads everything
    // of all ranks.
    scatter_parts(data.data(), data.data() + part_of(elements, ranks_.rank()).begin * element_bytes, elements,
                  element, reduction);
    gather_parts(part_of(elements, 0).size() * element_bytes, [&](int rank) {
      const Range part = part_of(elements, rank);
      return data.subspan(part.begin * element_bytes, part.size() * element_bytes);
    });
    return;
  }
  std::vector<const std::byte*> sources(static_cast<std::size_t>(ranks_.size()));
  const Range all = {0, data.size()};
  run_steps(
      pieces(data.size(), piece_bytes),
      [&](std::size_t step, std::byte* slot) {
        const Range range = all.piece(step, piece_bytes);
        copy_bytes(slot, data.data() + range.begin, range.size());
      },
      [&](std::size_t step) {
        const Range range = all.piece(step, piece_bytes);
        for (int rank = 0; rank < ranks_.size(); ++rank) {
          sources[static_cast<std::size_t>(rank)] =
              rank == ranks_.rank() ? data.data() + range.begin : ranks_.slot_of(rank).data();
        }
        reduce_in_order(element, reduction, sources, data.data() + range.begin, range.size() / element_bytes);
      });
}

void SharedCollectives::broadcast(std::span<std::byte> data, int root, std::string_view element,
                                  std::size_t element_bytes, Timeout timeout) {
  CollectiveHeader header = header_of(CollectiveKind::kBroadcast, element, data.size() / element_bytes);
  header.root = root;
  ranks_.begin(header, timeout);
  const std::size_t piece_bytes = ranks_.slot_bytes();
  const Range all = {0, data.size()};
  run_steps(
      pieces(data.size(), piece_bytes),
      [&](std::size_t step, std::byte* slot) {
        const Range range = all.piece(step, piece_bytes);
        if (ranks_.rank() == root) copy_bytes(slot, data.data() + range.begin, range.size());
      },
      [&](std::size_t step) {
        const Range range = all.piece(step, piece_bytes);
        for (int rank = 0; rank < ranks_.size(); ++rank) {
          const std::byte* slot = ranks_.slot_of(rank).data();
          if (rank == root && rank != ranks_.rank())
            copy_bytes(data.data() + range.begin, slot, range.size());
        }
      });
}

void SharedCollectives::scatter(std::span<const std::byte* const> ins, std::span<std::byte> out, int root,
                                std::string_view element, std::size_t element_bytes, Timeout timeout) {
  CollectiveHeader header = header_of(CollectiveKind::kScatter, element, out.size() / element_bytes);
  header.root = root;
  ranks_.begin(header, timeout);
  const auto size = static_cast<std::size_t>(ranks_.size());
  const auto own = static_cast<std::size_t>(ranks_.rank());
  const bool is_root = ranks_.rank() == root;
  // A slot holds a piece of each rank's part, as in a reduce-scatter. Only the root's slot is filled.
  const std::size_t piece_bytes = ranks_.slot_bytes() / size / 64 * 64;
  const Range all = {0, out.size()};
  if (is_root && out.data() != ins[own]) copy_bytes(out.data(), ins[own], out.size());
  run_steps(
      pieces(out.size(), piece_bytes),
      [&](std::size_t step, std::byte* slot) {
        if (!is_root) return;
        const Range range = all.piece(step, piece_bytes);
        for (std::size_t rank = 0; rank < size; ++rank) {
          if (rank != own) copy_bytes(slot + rank * piece_bytes, ins[rank] + range.begin, range.size());
        }
      },
      [&](std::size_t step) {
        const Range range = all.piece(step, piece_bytes);
        for (int rank = 0; rank < ranks_.size(); ++rank) {
          const std::byte* slot = ranks_.slot_of(rank).data();
          if (rank == root && !is_root)
            copy_bytes(out.data() + range.begin, slot + own * piece_bytes, range.size());
        }
      });
}

void SharedCollectives::all_to_all(std::span<const std::byte> in, std::span<std::byte> out,
                                   std::string_view element, std::size_t element_bytes, Timeout timeout) {
  ranks_.begin(header_of(CollectiveKind::kAllToAll, element, in.size() / element_bytes), timeout);
  const auto size = static_cast<std::size_t>(ranks_.size());
  const auto own = static_cast<std::size_t>(ranks_.rank());
  const std::size_t part_bytes = in.size() / size;
  copy_bytes(out.data() + own * part_bytes, in.data() + own * part_bytes, part_bytes);
  // A slot holds a piece of each rank's part, as in a reduce-scatter.
  const std::size_t piece_bytes = ranks_.slot_bytes() / size / 64 * 64;
  const Range part = {0, part_bytes};
  run_steps(
      pieces(part_bytes, piece_bytes),
      [&](std::size_t step, std::byte* slot) {
        const Range range = part.piece(step, piece_bytes);
        for (std::size_t rank = 0; rank < size; ++rank) {
          if (rank == own) continue;
          copy_bytes(slot + rank * piece_bytes, in.data() + rank * part_bytes + range.begin, range.size());
        }
      },
      [&](std::size_t step) {
        const Range range = part.piece(step, piece_bytes);
        for (std::size_t i = 1; i < size; ++i) {
          const std::size_t rank = (own + i) % size;
          const std::byte* slot = ranks_.slot_of(static_cast<int>(rank)).data();
          copy_bytes(out.data() + rank * part_bytes + range.begin, slot + own * piece_bytes, range.size());
        }
      });
}

void SharedCollectives::barrier(Timeout timeout) {
  ranks_.begin(CollectiveHeader{}, timeout);
  run_steps(
      1, [](std::size_t, std::byte*) {},
      [&](std::size_t) {
        for (int rank = 0; rank < ranks_.size(); ++rank) static_cast<void>(ranks_.slot_of(rank));
      });
}

std::string_view name_of(Element element) {
  switch (element) {
    case Element::kFloat32:
      return "float32";
    case Element::kFloat64:
      return "float64";
    case Element::kBFloat16:
      return "bfloat16";
    case Element::kFloat16:
      return "float16";
    case Element::kInt64:
      return "int64";
    case Element::kInt32:
      return "int32";
    case Element::kInt16:
      return "int16";
    case Element::kInt8:
      return "int8";
    case Element::kUInt8:
      return "uint8";
  }
  return "unknown";
}

}  // namespace accel
