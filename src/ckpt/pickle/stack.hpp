#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "base/error.hpp"
#include "ckpt/pickle/graph.hpp"

namespace accel::ckpt::pickle {

/// The values that the opcodes of a pickle work on. Values that were taken off stay readable until the next
/// push. Throws Error (kCorrupt) if an opcode asks for more than is there.
class Stack {
 public:
  [[gnu::always_inline]] void push(Ref value) {
    if (height_ == refs_.size()) [[unlikely]]
      grow();
    refs_[height_++] = value;
  }
  [[nodiscard, gnu::always_inline]] Ref top() const {
    if (height_ <= floor_) [[unlikely]]
      reject_empty();
    return refs_[height_ - 1];
  }
  Ref pop() {
    const Ref value = top();
    --height_;
    return value;
  }
  [[gnu::always_inline]] std::span<const Ref> take(std::size_t count) {
    if (height_ - floor_ < count) [[unlikely]]
      reject_empty();
    height_ -= count;
    return std::span(refs_).subspan(height_, count);
  }
  void mark() {
    if (marks_.size() == kMostMarks) throw Error(ErrorKind::kCorrupt, "too many marks");
    marks_.push_back(height_);
    floor_ = height_;
  }
  [[nodiscard]] bool mark_is_top() const { return !marks_.empty() && floor_ == height_; }
  void drop_mark() {
    marks_.pop_back();
    floor_ = marks_.empty() ? 0 : marks_.back();
  }
  std::span<const Ref> take_marked() {
    if (marks_.empty()) throw Error(ErrorKind::kCorrupt, "a mark is missing");
    const std::span<const Ref> taken = take(height_ - floor_);
    drop_mark();
    return taken;
  }
  [[nodiscard]] bool holds_one() const { return height_ == 1 && marks_.empty(); }

 private:
  // Limits on containers that are open at once, and on the values in them. No pickle comes near that was not
  // crafted to.
  static constexpr std::size_t kMostMarks = 1'000'000;
  static constexpr std::size_t kMostValues = std::size_t{64} << 20;

  [[gnu::noinline]] void grow() {
    if (height_ >= kMostValues) throw Error(ErrorKind::kCorrupt, "too many values on the stack");
    refs_.resize(std::max<std::size_t>(64, height_ * 2));
  }
  [[noreturn, gnu::noinline]] static void reject_empty() {
    throw Error(ErrorKind::kCorrupt, "the stack is empty");
  }

  std::vector<Ref> refs_;
  std::size_t height_ = 0;
  std::size_t floor_ = 0;  // The last mark.
  std::vector<std::size_t> marks_;
};

}  // namespace accel::ckpt::pickle
