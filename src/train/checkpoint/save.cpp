#include "train/checkpoint/save.hpp"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <span>
#include <thread>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/files/directory.hpp"
#include "base/host/file_system.hpp"
#include "base/host/memory.hpp"
#include "base/log.hpp"
#include "base/seconds.hpp"
#include "ckpt/store/accelerate_names.hpp"
#include "ckpt/store/adapter_names.hpp"
#include "ckpt/store/best_checkpoint.hpp"
#include "ckpt/store/manifest.hpp"
#include "ckpt/store/model_assets.hpp"
#include "ckpt/store/resume_point.hpp"
#include "train/checkpoint/adapter.hpp"
#include "train/checkpoint/other_forms.hpp"
#include "train/checkpoint/rank_state.hpp"
#include "train/checkpoint/save_checks.hpp"
#include "train/device/device_reader.hpp"
#include "train/device/streams.hpp"

namespace accel::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Between two exchanges of votes while all ranks wait.
constexpr auto kShortestPause = std::chrono::microseconds(200);
constexpr auto kLongestPause = std::chrono::milliseconds(50);

/// Paths in messages need not be UTF-8.
std::string text_of(const json& document) {
  return document.dump(-1, ' ', false, json::error_handler_t::replace);
}

SavedPart part_of(std::string directory, int rank, RankState own,
                  std::function<std::vector<ckpt::DcpItem>(int rank)> items_of) {
  return {std::move(directory), ckpt::plan_dcp_rank(rank, std::move(own.items)), std::move(own.sources),
          std::move(items_of)};
}

std::string optimizer_directory(std::size_t index) {
  return ckpt::sharded_directory(ckpt::kOptimizerStem, static_cast<int>(index));
}

/// Returns the bytes that a checkpoint takes at least, while it is converted to another form.
std::uint64_t tensor_bytes(const ShardedModel& model, const Optimizer& optimizer,
                           const config::CheckpointConfig& config) {
  const auto bytes_of = [&](const FlatLayout& layout, std::size_t item_bytes) {
    std::uint64_t bytes = 0;
    for (const FlatParameter& parameter : layout.parameters)
      bytes += static_cast<std::uint64_t>(checked_numel(parameter.spec.whole_shape())) * item_bytes;
    return bytes;
  };
  std::uint64_t model_bytes = 0;
  for (const auto& unit : model.units()) {
    for (const auto& buffer : unit->buffers()) {
      if (buffer->trainable() || !config.adapter_only)
        model_bytes += bytes_of(buffer->layout(), c10::elementSize(buffer->dtype()));
    }
  }
  std::uint64_t optimizer_bytes = 0;
  for (const OptimizerState& state : optimizer.states()) {
    for (std::size_t i = state.range.first; i < state.range.end; ++i) {
      optimizer_bytes +=
          static_cast<std::uint64_t>(state_bytes_of(optimizer.plan().groups()[state.range.group].tensors,
                                                    state.buffer->layout().parameters[i].spec.whole_shape()));
    }
  }
  // A converted part stands beside the sharded one for a while.
  const std::uint64_t twice = config.type == config::StateDictType::kFull
                                  ? std::max(model_bytes, optimizer_bytes)
                              : config.type == config::StateDictType::kLocal ? model_bytes
                                                                             : 0;
  return model_bytes + optimizer_bytes + twice;
}

/// A c10::Error without the stack that its message has.
Error as_error(const std::exception& error) {
  if (const auto* torch_error = dynamic_cast<const c10::Error*>(&error))
    return {ErrorKind::kFailure, torch_error->what_without_backtrace()};
  return error_of(error);
}

/// Whether any rank has something for itself. Rank 0 may have nothing where all others have.
bool has_rank_state(const ShardedModel& model, bool adapter_only) {
  const NamedTensors persistent = model.persistent_buffers();
  return !rank_state(model, persistent, adapter_only, 0).items.empty() ||
         !rank_state(model, persistent, adapter_only, model.groups().mesh().size() - 1).items.empty();
}

}  // namespace

CheckpointSaver::CheckpointSaver(ckpt::RunCheckpoints& store, const ShardedModel& model, Optimizer& optimizer,
                                 const config::TrainingConfig& config, Group& group, int local_ranks)
    : store_(store),
      model_(model),
      optimizer_(optimizer),
      config_(config),
      group_(group),
      local_ranks_(std::max(local_ranks, 1)) {
  if (config_.checkpoint.adapter_only) require_adapter(model_, config_.checkpoint.adapter_names);
  optimizer_.call_before_change([this](const Optimizer::State& state) { keep(state); });
}

CheckpointSaver::~CheckpointSaver() {
  optimizer_.call_before_change({});
  cancelled_ = true;
  if (task_.valid()) task_.wait();
}

void CheckpointSaver::begin(TrainerState state, bool survives, bool waits) {
  start_ = Clock::now();
  survives_ = survives;
  stall_seconds_ = 0;
  const std::int64_t step = state.run.step;
  job_ = std::make_unique<SaveJob>();
  job_->directory = store_.incomplete_path_of(step);
  job_->rank = group_.rank();
  job_->world_size = group_.size();
  job_->verify = config_.checkpoint.verify;
  job_->type = config_.checkpoint.type;
  job_->weight_conversions = model_.weight_conversions();
  if (config_.checkpoint.adapter_only) job_->adapter_config = model_.adapter_config();
  job_->state.run.step = step;
  phase_ = Phase::kWriting;
  on_first_rank([&] {
    store_.begin(step);
    const std::uint64_t bytes = tensor_bytes(model_, optimizer_, config_.checkpoint);
    if (const auto left = free_bytes(job_->directory); left && *left < bytes) make_room(bytes - *left);
    require_space(job_->directory, bytes);
    make_directory(job_->directory / ckpt::sharded_directory(ckpt::kModelStem, 0));
    for (std::size_t i = 0; i < used_optimizers(optimizer_).size(); ++i)
      make_directory(job_->directory / optimizer_directory(i));
    if (has_rank_state(model_, config_.checkpoint.adapter_only))
      make_directory(job_->directory / kRankStateDirectory);
  });
  // From here on a failure is a vote.
  try {
    take_snapshot(std::move(state), waits);
  } catch (const std::exception& error) {
    give_up(error);
  }
  stall_seconds_ += seconds_since(start_);
}

void CheckpointSaver::give_up(const std::exception& error) {
  failure_ = as_error(error);
  cancelled_ = true;
  // From here on training changes tensors without asking, so the thread must not read them any more.
  if (task_.valid()) task_.wait();
  if (snapshot_ != nullptr) snapshot_->abandon();
}

std::vector<SavedPart> CheckpointSaver::parts_of(double scale) const {
  const int rank = group_.rank();
  const Mesh& mesh = model_.groups().mesh();
  // The states refer to the tensors; the numbers of steps are copied.
  const std::vector<OptimizerState> states = optimizer_.states();
  std::vector<SavedPart> parts;
  parts.push_back(part_of(ckpt::sharded_directory(ckpt::kModelStem, 0), rank,
                          model_state(model_, config_.checkpoint.adapter_only, rank), [this](int of) {
                            return model_state(model_, config_.checkpoint.adapter_only, of).items;
                          }));
  const std::vector<std::size_t> optimizers = used_optimizers(optimizer_);
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    const auto optimizer_of = [this, &mesh, states, scale, number = optimizers[i]](int of) {
      return optimizer_state(optimizer_, states, mesh, {.optimizer = number, .rank = of, .scale = scale});
    };
    parts.push_back(part_of(optimizer_directory(i), rank, optimizer_of(rank),
                            [optimizer_of](int of) { return optimizer_of(of).items; }));
  }
  if (!has_rank_state(model_, config_.checkpoint.adapter_only)) return parts;
  // Training changes what each rank has for itself, so the items of all ranks are taken now.
  const NamedTensors persistent = model_.persistent_buffers();
  const auto state_of = [&](int of) {
    return rank_state(model_, persistent, config_.checkpoint.adapter_only, of);
  };
  std::vector<std::vector<ckpt::DcpItem>> items(static_cast<std::size_t>(mesh.size()));
  for (int of = 0; rank == 0 && of < mesh.size(); ++of)
    items[static_cast<std::size_t>(of)] = state_of(of).items;
  parts.push_back(part_of(kRankStateDirectory, rank, state_of(rank), [items = std::move(items)](int of) {
    return items.at(static_cast<std::size_t>(of));
  }));
  return parts;
}

void CheckpointSaver::take_snapshot(TrainerState state, bool waits) {
  job_->state = std::move(state);
  job_->parts = parts_of(job_->state.next_scale);
  if (!config_.checkpoint.adapter_only) job_->tied = tied_names(model_);
  for (const std::size_t number : used_optimizers(optimizer_))
    job_->base_rates.push_back(base_rates(optimizer_, number));
  std::vector<at::Tensor> changing;
  std::vector<at::Tensor> constant;
  std::vector<at::Tensor> kept_now;  // These must not be read while training goes on.
  for (const auto& unit : model_.units()) {
    for (const auto& buffer : unit->buffers()) {
      const bool may_change = buffer->trainable() || buffer->is_alias();
      (may_change ? changing : constant).push_back(buffer->shard());
      if (buffer->is_alias()) kept_now.push_back(buffer->shard());
    }
  }
  for (const Optimizer::State& entry : optimizer_.states())
    changing.insert(changing.end(), entry.tensors.begin(), entry.tensors.end());
  const std::uint64_t limit = config_.checkpoint.host_memory;
  const at::Device device = model_.storage().compute();
  std::unique_ptr<DeviceReader> reader;
  if (!device.is_cpu()) {
    if (!lane_) lane_ = stream_for_copies(device);
    reader = std::make_unique<StagedReader>(device, StagedReader::Options{.lane = lane_});
  }
  snapshot_ = std::make_unique<Snapshot>(
      limit > 0 ? limit : available_memory_bytes() / 2 / static_cast<std::uint64_t>(local_ranks_),
      std::move(reader));
  for (SavedPart& part : job_->parts) snapshot_->add(part.sources, changing, constant);
  cancelled_ = false;
  task_ = std::async(std::launch::async, [this] {
    try {
      return write_files(*job_, *snapshot_, cancelled_);
    } catch (...) {
      snapshot_->abandon();
      throw;
    }
  });
  if (waits) return;
  for (const at::Tensor& tensor : kept_now) snapshot_->keep(tensor);
  snapshot_->copy_ahead();
}

void CheckpointSaver::keep(const Optimizer::State& state) {
  if (phase_ != Phase::kWriting || snapshot_ == nullptr) return;
  const Clock::time_point start = Clock::now();
  try {
    snapshot_->keep(state.buffer->shard());
    for (const at::Tensor& tensor : state.tensors) snapshot_->keep(tensor);
  } catch (const std::exception& error) {
    give_up(error);  // Out of memory: the save fails, and the step goes on.
  }
  stall_seconds_ += seconds_since(start);
}

void CheckpointSaver::collect_result() {
  if (!task_.valid()) return;
  try {
    result_ = task_.get();
  } catch (const std::exception& error) {
    if (!cancelled_) failure_ = as_error(error);
  }
}

SaveVotes CheckpointSaver::votes() {
  if (phase_ == Phase::kIdle) return {};
  if (task_.valid() && task_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) collect_result();
  if (failure_) return {0, 1};
  return {task_.valid() ? 0.0 : 1.0, 0};
}

std::optional<SavedCheckpoint> CheckpointSaver::advance(const SaveVotes& sums) {
  if (phase_ == Phase::kIdle) return std::nullopt;
  const std::int64_t step = job_->state.run.step;
  if (sums.failed > 0) {
    cancelled_ = true;
    if (snapshot_ != nullptr) snapshot_->abandon();
    collect_result();
    const std::string why = failure_ ? failure_->message() : "";
    json first = {{"rank", 0}, {"error", "no rank says why"}};
    const std::vector<std::string> reasons = group_.gather_object(text_of(why));
    for (std::size_t rank = reasons.size(); rank-- > 0;) {
      if (const json stated = json::parse(reasons[rank]); stated != "")
        first = {{"rank", rank}, {"error", stated}};
    }
    const json received = broadcast_from_first_rank(first);
    fail(received.at("rank"), received.at("error"));
  }
  if (sums.done < group_.size()) return std::nullopt;
  if (phase_ == Phase::kWriting) {
    // All values are written, so the memory of copies is free.
    snapshot_.reset();
    files_.clear();
    bytes_ = 0;
    for (const std::string& text : group_.gather_object(text_of(result_)))
      files_.push_back(json::parse(text));
    phase_ = Phase::kCommitting;
    if (group_.rank() != 0) return std::nullopt;
    task_ = std::async(std::launch::async, [this, step] {
      bytes_ = write_manifest(*job_, files_);  // Nobody reads it before the task has ended.
      const bool exports = config_.checkpoint.exports_safetensors && job_->state.is_last;
      if (exports) remove_earlier_export();
      store_.commit(step);
      prune(config_.checkpoint.total_limit);
      if (exports) export_model(store_.path_of(step));
      return json();
    });
    return std::nullopt;
  }
  const SavedCheckpoint saved{step, store_.path_of(step), bytes_, seconds_since(start_), stall_seconds_};
  reset();
  return saved;
}

void CheckpointSaver::prune(std::int64_t limit) {
  try {
    store_.prune(limit, best_to_keep());
  } catch (const std::exception& error) {
    log::warn(fmt::format("no checkpoint is removed, because it is not known which is the best: {}",
                          error_of(error).message()));
  }
}

std::optional<std::int64_t> CheckpointSaver::best_to_keep() const {
  if (!config_.checkpoint.keep_best || config_.checkpoint.total_limit == 0) return std::nullopt;
  return ckpt::best_checkpoint(store_, ckpt::BestMetric(config_.best_metric),
                               config_.output_dir / "metrics.jsonl");
}

/// Removes the checkpoints that would go after the save, if they make that much room and the newest one,
/// which stays, is whole.
void CheckpointSaver::make_room(std::uint64_t missing) {
  if (config_.checkpoint.total_limit == 0) return;
  try {
    const std::int64_t limit = std::max<std::int64_t>(config_.checkpoint.total_limit - 1, 1);
    std::vector<std::int64_t> steps = store_.steps();
    std::erase_if(steps, [&](std::int64_t step) { return !store_.is_of_training(step); });
    if (static_cast<std::int64_t>(steps.size()) <= limit) return;
    const std::optional<std::int64_t> best = best_to_keep();
    std::uint64_t bytes = 0;
    for (auto step = steps.begin(); step != steps.end() - limit; ++step) {
      if (*step == best) continue;
      const ckpt::Manifest manifest = ckpt::parse_manifest(store_.path_of(*step) / ckpt::kManifestName);
      for (const auto& [name, file] : manifest.files) bytes += file.bytes;
    }
    if (bytes >= missing && ckpt::newest_whole(store_).step == steps.back()) store_.prune(limit, best);
  } catch (const std::exception& error) {
    log::warn(fmt::format("no checkpoint is removed for its successor: {}", error_of(error).message()));
  }
}

/// An earlier end of the run has exported other weights. From the commit on they would be taken for those of
/// the finished run until the new ones are there.
void CheckpointSaver::remove_earlier_export() const {
  const fs::path output = config_.output_dir / "export";
  try {
    if (fs::is_directory(fs::symlink_status(output))) discard_tree(output);
  } catch (const std::exception& error) {
    log::warn(fmt::format("the export of an earlier end of the run cannot be removed: {}",
                          error_of(error).message()));
  }
}

void CheckpointSaver::export_model(const fs::path& checkpoint) const {
  const fs::path output = config_.output_dir / "export";
  try {
    export_safetensors(checkpoint, output, assets_of(config_, checkpoint), config_.checkpoint.adapter_only);
    log::info(fmt::format("exported the weights to {}", output.string()));
  } catch (Error& error) {
    error.add_context(
        fmt::format("the checkpoint is complete, but its export to '{}' failed", output.string()));
    throw;
  }
}

std::optional<SavedCheckpoint> CheckpointSaver::finish() {
  std::chrono::microseconds pause = kShortestPause;
  const Clock::time_point start = Clock::now();
  const double before = stall_seconds_;
  while (in_flight()) {
    const SaveVotes own = votes();
    std::array<double, 2> sums = {own.done, own.failed};
    group_.all_reduce_sum(sums);
    stall_seconds_ = before + seconds_since(start);
    if (auto saved = advance({sums[0], sums[1]})) return saved;
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::microseconds>(pause * 2, kLongestPause);
  }
  return std::nullopt;
}

json CheckpointSaver::broadcast_from_first_rank(const json& document) {
  const std::string stated = group_.rank() == 0 ? text_of(document) : "";
  const auto bytes = std::as_bytes(std::span(stated));
  const std::vector<std::byte> received = group_.broadcast_bytes({bytes.begin(), bytes.end()});
  return json::parse(std::string_view(reinterpret_cast<const char*>(received.data()), received.size()));
}

void CheckpointSaver::on_first_rank(const std::function<void()>& work) {
  json stated = json::object();
  if (group_.rank() == 0) {
    try {
      work();
    } catch (const std::exception& error) {
      failure_ = as_error(error);
      stated["error"] = failure_->message();
    }
  }
  const json received = broadcast_from_first_rank(stated);
  if (received.contains("error")) fail(0, received.at("error"));
}

void CheckpointSaver::fail(std::size_t rank, const std::string& why) {
  const std::int64_t step = job_->state.run.step;
  if (group_.rank() == 0) store_.discard(step);
  // The launcher ends all ranks as soon as one has failed, and rank 0 must be done by then.
  wait_for_all();
  const std::optional<Error> own = failure_;
  reset();
  if (own) throw SaveFailed(*own);
  // Waits until the rank that failed has reported its error and has ended, because the first report counts as
  // the cause.
  if (!survives_) wait_for_all();
  throw SaveFailed(
      Error(ErrorKind::kFailure,
            fmt::format("rank {} could not save the checkpoint of step {}: {}", rank, step, why)));
}

/// Waits for the other ranks. A rank that has ended does not hold this one up.
void CheckpointSaver::wait_for_all() {
  try {
    group_.barrier();
  } catch (const std::exception&) {
    // The error that ended the rank is reported, and not this one.
  }
}

void CheckpointSaver::reset() {
  phase_ = Phase::kIdle;
  snapshot_.reset();
  job_.reset();
  files_.clear();
  result_ = json();
  failure_.reset();
}

}  // namespace accel::train
