#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string_view>

#include "ranks/lockstep.hpp"
#include "ranks/reduce.hpp"

namespace accel {

/// Collectives over shared memory. They work in pieces that fit its slots, so that the memory in use does not
/// depend on the tensors. Every rank calls the same collectives in the same order with equal sizes.
///
/// A byte is copied into the sender's slot once and read from there where it is needed: an all-gather copies
/// it from the slot into the output, a reduction adds it up on the way. Results are the same bits on every
/// rank and in every run, because sums are taken in the order of the ranks.
///
/// A collective returns when this rank's output is complete and its input is no longer in use. Errors are
/// those of Lockstep. After an error the outputs are undefined.
class SharedCollectives {
 public:
  using Timeout = std::chrono::milliseconds;

  explicit SharedCollectives(Lockstep& ranks) : ranks_(ranks) {}

  /// outs[r], as long as `in`, gets rank r's `in`. `in` may be outs[rank] itself. `element` names the type of
  /// the elements, which have `element_bytes` each.
  void all_gather(std::span<const std::byte> in, std::span<std::byte* const> outs, std::string_view element,
                  std::size_t element_bytes, Timeout timeout);
  /// `out` gets the reduction of this rank's part of `in`, which is as long as all ranks' `out` together.
  /// `out` may be that part itself.
  void reduce_scatter(std::span<const std::byte> in, std::span<std::byte> out, Element element,
                      Reduction reduction, Timeout timeout);
  /// Replaces `data` by its reduction over the ranks.
  void all_reduce(std::span<std::byte> data, Element element, Reduction reduction, Timeout timeout);
  /// Replaces `data` by that of rank `root`.
  void broadcast(std::span<std::byte> data, int root, std::string_view element, std::size_t element_bytes,
                 Timeout timeout);
  /// `out` gets this rank's part of what rank `root` has: ins[r], as long as `out`, is the part of rank r.
  /// `ins` is empty on the other ranks.
  void scatter(std::span<const std::byte* const> ins, std::span<std::byte> out, int root,
               std::string_view element, std::size_t element_bytes, Timeout timeout);
  /// Part r of `in` goes to rank r, where it becomes the part of `out` with this rank's number. Both have a
  /// part for each rank, and all parts are equally long. They do not overlap.
  void all_to_all(std::span<const std::byte> in, std::span<std::byte> out, std::string_view element,
                  std::size_t element_bytes, Timeout timeout);
  void barrier(Timeout timeout);

 private:
  struct Range;

  [[nodiscard]] Range part_of(std::size_t elements, int rank) const;
  template <class Fill, class Read>
  void run_steps(std::size_t steps, Fill fill, Read read);
  template <class Place>
  void gather_parts(std::size_t longest_bytes, Place place);
  void scatter_parts(const std::byte* in, std::byte* out, std::size_t elements, Element element,
                     Reduction reduction);

  Lockstep& ranks_;
};

/// Returns the name that torch prints for the type, such as "float32".
[[nodiscard]] std::string_view name_of(Element element);

}  // namespace accel
