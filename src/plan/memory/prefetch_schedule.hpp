#pragma once

#include <cstddef>
#include <optional>
#include <unordered_map>
#include <vector>

namespace accel {

/// What the prefetch schedule asks of a unit.
class PrefetchUnit {
 public:
  PrefetchUnit() = default;
  PrefetchUnit(const PrefetchUnit&) = delete;
  PrefetchUnit& operator=(const PrefetchUnit&) = delete;
  virtual ~PrefetchUnit() = default;

  /// Starts to gather the parameters and reports it with PrefetchSchedule::on_unshard(). Does not wait.
  virtual void start_unshard() = 0;
  /// Starts to fetch the unit's offloaded activations, which its backward needs first.
  virtual void fetch_activations() = 0;
  /// Whether backward is still to come through the unit, or to come back to it.
  [[nodiscard]] virtual bool awaits_backward() const = 0;
};

/// Which units of a model are gathered ahead of their turn, and when.
///
/// The first forward records the order in which the first calls of the units begin, and the order in which
/// they end. Every rank runs the same model, so both orders are the same on all ranks. Forward gathers ahead
/// the next units in the first order, and backward the previous units in the second order: a unit around
/// others ends after them, and its backward comes before theirs.
///
/// The engine drives it with the units of a model, and memory_of_step() with the units of a plan, so that
/// both gather the same units ahead.
///
/// At most `depth` units are prefetch candidates. The nearest is gathered as soon as fewer than most() units
/// are unsharded, and then the next. The schedule refers to the units, which must outlive it.
class PrefetchSchedule {
 public:
  /// `depth` is FsdpConfig::prefetch_depth.
  explicit PrefetchSchedule(int depth) : depth_(depth) {}

  /// Around each call of a unit in forward. Only the first call during the first forward is recorded.
  void begin_call(PrefetchUnit& unit);
  void end_call(PrefetchUnit& unit);
  /// Ends the recording: after the first forward. Before it nothing is gathered ahead.
  void finish_recording() { is_recording_ = false; }

  /// The unit gathers its parameters. Returns false if they are gathered already, or being gathered.
  bool on_unshard(const PrefetchUnit& unit);
  /// The unit frees its gathered parameters. Returns false, without effect, if it is not unsharded.
  bool on_reshard(const PrefetchUnit& unit);
  /// Gathers the candidates for which there is room.
  void gather_candidates();
  /// Forgets the candidates: at the end of backward, and of a forward that no backward follows.
  void drop_candidates() { candidates_.clear(); }

  /// `unit` runs in forward: makes the units that run next the candidates. `recomputing` is the innermost
  /// unit that is being recomputed in backward, whose inner units alone run next, or null in an ordinary
  /// forward.
  void prefetch_forward(const PrefetchUnit& unit, const PrefetchUnit* recomputing);
  /// Backward comes to `unit`: makes the units whose backward comes next the candidates, and fetches the
  /// activations of the nearest. `recomputes`: `unit` runs its forward once more first, and with it its inner
  /// units.
  void prefetch_backward(const PrefetchUnit& unit, bool recomputes);

  /// No unit is gathered ahead while so many units are unsharded: the root, the unit that runs, and `depth`
  /// other ones.
  [[nodiscard]] int most() const { return depth_ + 2; }

  /// How many gathers so far began before the unit was called.
  [[nodiscard]] int gathered_ahead() const { return gathered_ahead_; }
  /// The largest number of units so far that were unsharded at once, or being gathered.
  [[nodiscard]] int most_unsharded() const { return most_unsharded_; }

 private:
  struct Entry {
    bool is_unsharded = false;
    std::optional<std::size_t> begin;  ///< Index in begins_.
    std::optional<std::size_t> end;    ///< Index in ends_.
    std::size_t inner_end = 0;         ///< Index in begins_ past the units that are called inside this one.
  };

  using Units = std::vector<PrefetchUnit*>;  ///< The nearest first.

  [[nodiscard]] Units next_in_forward(const PrefetchUnit& unit, const PrefetchUnit* recomputing) const;
  [[nodiscard]] Units next_in_backward(const PrefetchUnit& unit, bool recomputes) const;
  /// The units that begin after index `begin` and before index `end`, `depth` of them at most.
  [[nodiscard]] Units begins_after(std::size_t begin, std::size_t end) const;

  int depth_;
  std::unordered_map<const PrefetchUnit*, Entry> entries_;
  std::vector<PrefetchUnit*> begins_;
  std::vector<PrefetchUnit*> ends_;
  bool is_recording_ = true;
  Units candidates_;
  int unsharded_ = 0;
  int gathered_ahead_ = 0;
  int most_unsharded_ = 0;
};

}  // namespace accel
