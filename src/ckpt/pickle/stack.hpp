#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "ckpt/pickle/graph.hpp"

namespace accel::ckpt::pickle {

/// The values that the opcodes of a pickle work on. What was taken off stays readable until the next push.
/// All that an opcode asks for and that is not there is an Error (kCorrupt), except at the bottom of a stack
/// that begins in the middle of a pickle, where it is a Beneath.
class Stack {
 public:
  /// What is asked for lies beneath this stack, on the one of the part of the pickle that came before.
  struct Beneath {};

  explicit Stack(bool begins_in_the_middle) : open_(begins_in_the_middle) {}

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
    last_dropped_ = marks_.back();
    marks_.pop_back();
    floor_ = marks_.empty() ? 0 : marks_.back();
  }
  std::span<const Ref> take_marked() {
    if (marks_.empty()) {
      if (open_) throw Beneath();
      throw Error(ErrorKind::kCorrupt, "a mark is missing");
    }
    const std::span<const Ref> taken = take(height_ - floor_);
    drop_mark();
    return taken;
  }
  [[nodiscard]] bool holds_one() const { return height_ == 1 && marks_.empty(); }

  /// Calls `value` with each value from the bottom on, `mark` at each mark, and leaves nothing.
  template <class OnValue, class OnMark>
  void empty(OnValue value, OnMark mark) {
    std::size_t next_mark = 0;
    for (std::size_t i = 0; i <= height_; ++i) {
      for (; next_mark < marks_.size() && marks_[next_mark] == i; ++next_mark) mark();
      if (i < height_) value(refs_[i]);
    }
    marks_.clear();
    height_ = floor_ = 0;
  }

  /// Where the stack stands; an opcode that ended in Beneath is undone by going back to where it began.
  struct Position {
    std::size_t height = 0;
    std::size_t marks = 0;
  };
  [[nodiscard, gnu::always_inline]] Position position() const { return {height_, marks_.size()}; }
  /// Only takes may have come between, at most of one mark.
  void go_back(Position to) {
    if (to.marks > marks_.size()) marks_.push_back(last_dropped_);
    height_ = to.height;
    floor_ = marks_.empty() ? 0 : marks_.back();
  }

 private:
  // Far more than a pickle has that was not made for it: containers that are open at once, and what lies in
  // them.
  static constexpr std::size_t kMostMarks = 1'000'000;
  static constexpr std::size_t kMostValues = std::size_t{64} << 20;

  [[gnu::noinline]] void grow() {
    if (height_ >= kMostValues) throw Error(ErrorKind::kCorrupt, "too many values on the stack");
    refs_.resize(std::max<std::size_t>(64, height_ * 2));
  }
  [[noreturn, gnu::noinline]] void reject_empty() const {
    if (open_ && marks_.empty()) throw Beneath();
    throw Error(ErrorKind::kCorrupt, "the stack is empty");
  }

  bool open_;
  std::vector<Ref> refs_;
  std::size_t height_ = 0;
  std::size_t floor_ = 0;  // The last mark.
  std::vector<std::size_t> marks_;
  std::size_t last_dropped_ = 0;
};

}  // namespace accel::ckpt::pickle
