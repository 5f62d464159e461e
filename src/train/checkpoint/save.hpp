#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "ckpt/store/run_checkpoints.hpp"
#include "core/config/config.hpp"
#include "train/c10d/group.hpp"
#include "train/checkpoint/save_files.hpp"
#include "train/checkpoint/snapshot.hpp"
#include "train/fsdp/sharded_model.hpp"
#include "train/optim/optimizer.hpp"

namespace accel::train {

/// A rank's part in the agreement on a save. Their sums over all ranks tell how far the save is.
struct SaveVotes {
  double done = 0;    ///< 1 if this rank has done its part.
  double failed = 0;  ///< 1 if it has failed.
};

/// A checkpoint that is complete and durable.
struct SavedCheckpoint {
  std::int64_t step = 0;
  std::filesystem::path path;
  std::uint64_t bytes = 0;   ///< The bytes of all its files on rank 0, and 0 on the other ranks.
  double seconds = 0;        ///< From begin() to the commit.
  double stall_seconds = 0;  ///< How long this rank's training waited for the save.
};

/// A save has failed on every rank, and the run may go on.
class SaveFailed : public Error {
 public:
  explicit SaveFailed(Error error) : Error(std::move(error)) {}
};

/// Saves sharded checkpoints of model and optimizer under Accelerate's names, with trainer_state.json,
/// random_states_<rank>.json, in float16 scaler.json, training_state/ for what each rank has for itself, and
/// accel_manifest.json, and prunes old checkpoints.
///
/// A save runs behind the training. begin() takes a snapshot, each rank writes its files in a thread of its
/// own, and when all have written, rank 0 commits in its thread. How far the ranks are is in votes() of each,
/// which ride in an all-reduce that the step makes anyway. There is one save at a time.
///
/// A save that fails throws SaveFailed on every rank at the same point, from begin(), advance() or finish().
/// The earlier checkpoints are unchanged then, what was written is removed, and the next save may begin.
/// Every function but votes() is collective.
class CheckpointSaver {
 public:
  /// Refers to its arguments. The optimizer announces its changes to the saver as long as that lives.
  /// `local_ranks` is the number of ranks of this machine, which share its memory; 0 if unknown.
  CheckpointSaver(ckpt::RunCheckpoints& store, const ShardedModel& model, Optimizer& optimizer,
                  const config::TrainingConfig& config, Group& group, int local_ranks);
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;
  /// Cancels a save in flight and waits for its thread.
  ~CheckpointSaver();

  /// Writes the weights of `checkpoint`, the last one of the run, into output_dir/export, for transformers.
  void export_model(const std::filesystem::path& checkpoint) const;
  /// Whether there is a save in flight; the same on all ranks.
  [[nodiscard]] bool in_flight() const { return phase_ != Phase::kIdle; }
  /// Starts the save of `state.run.step`. No save may be in flight. `survives` says that the ranks go on if
  /// the save fails: otherwise the ranks that did not fail wait for the end of the one that did, because the
  /// first report of an error counts as the cause. `waits` says that finish() follows at once, so that
  /// nothing needs to be copied.
  void begin(TrainerState state, bool survives, bool waits);
  /// This rank's votes, for the next all-reduce.
  [[nodiscard]] SaveVotes votes();
  /// Goes on with the save in flight by the sums of the votes, which are the same on all ranks. Returns the
  /// checkpoint if it is complete.
  std::optional<SavedCheckpoint> advance(const SaveVotes& sums);
  /// Waits for the save in flight, if there is one. No rank waits long in a collective: they exchange votes.
  std::optional<SavedCheckpoint> finish();

 private:
  using Clock = std::chrono::steady_clock;
  enum class Phase { kIdle, kWriting, kCommitting };

  /// Returns rank 0's `document` on every rank.
  nlohmann::json broadcast_from_first_rank(const nlohmann::json& document);
  /// Runs `work` on rank 0 alone, while the others wait.
  void on_first_rank(const std::function<void()>& work);
  void take_snapshot(TrainerState state, bool waits);
  [[nodiscard]] std::vector<SavedPart> parts_of(double scale) const;
  void keep(const Optimizer::State& state);
  void remove_earlier_export() const;
  /// Makes the save fail with `error`, and waits until its thread has ended.
  void give_up(const std::exception& error);
  /// Removes old checkpoints, on rank 0.
  void prune(std::int64_t limit);
  void make_room(std::uint64_t missing);
  [[nodiscard]] std::optional<std::int64_t> best_to_keep() const;
  void collect_result();
  /// Ends the save that failed. `why` is for the ranks that have no error of their own.
  [[noreturn]] void fail(std::size_t rank, const std::string& why);
  void wait_for_all();
  void reset();

  ckpt::RunCheckpoints& store_;
  const ShardedModel& model_;
  Optimizer& optimizer_;
  const config::TrainingConfig& config_;
  Group& group_;
  int local_ranks_;

  Phase phase_ = Phase::kIdle;
  bool survives_ = false;
  Clock::time_point start_;
  double stall_seconds_ = 0;
  std::uint64_t bytes_ = 0;
  std::unique_ptr<Snapshot> snapshot_;
  std::optional<c10::Stream> lane_;  ///< The stream on which saves copy from a device.
  std::unique_ptr<SaveJob> job_;
  std::vector<nlohmann::json> files_;  ///< Entries of the manifest on rank 0, by rank.
  nlohmann::json result_;              ///< What this rank's thread has returned.
  std::optional<Error> failure_;       ///< This rank's error.
  std::atomic<bool> cancelled_ = false;
  /// The thread of the phase. It uses the members above.
  std::future<nlohmann::json> task_;
};

}  // namespace accel::train
