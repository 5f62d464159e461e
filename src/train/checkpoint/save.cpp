#include "train/checkpoint/save.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/atomic_file.hpp"
#include "ckpt/dtype.hpp"
#include "train/checkpoint/state_items.hpp"

namespace accel::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Accelerate's names, for the first model and the first optimizer.
constexpr const char* kModelDirectory = "pytorch_model_fsdp_0";
constexpr const char* kOptimizerDirectory = "optimizer_0";

json to_json(const std::string& directory, const ckpt::FileSummary& file) {
  return {{"name", directory + "/" + file.name}, {"bytes", file.bytes}, {"crc32", file.crc32}};
}

std::string hex_of(const at::Tensor& bytes) {
  std::string text;
  for (std::int64_t i = 0; i < bytes.numel(); ++i)
    text += fmt::format("{:02x}", bytes.const_data_ptr<std::uint8_t>()[i]);
  return text;
}

void write_random_state(const fs::path& directory, int rank, const RandomState& state) {
  json document = {{"version", 1}, {"cpu", hex_of(state.cpu())}};
  if (state.gpu().defined()) document["cuda"] = hex_of(state.gpu());
  write_file_atomically(directory / fmt::format("random_states_{}.json", rank), document.dump() + "\n");
}

/// With the keys of torch's GradScaler.state_dict().
void write_scaler(const fs::path& directory, const GradScaler& scaler) {
  const core::GradScalerConfig& config = scaler.config();
  const json document = {{"version", 1},
                         {"scale", scaler.state().scale},
                         {"growth_factor", config.growth_factor},
                         {"backoff_factor", config.backoff_factor},
                         {"growth_interval", config.growth_interval},
                         {"_growth_tracker", scaler.state().growth_tracker}};
  write_file_atomically(directory / "scaler.json", document.dump(2) + "\n");
}

json tensors_of(const std::vector<ckpt::DcpRankPlan>& plans) {
  json tensors = json::object();
  for (const ckpt::DcpRankPlan& plan : plans) {
    for (const ckpt::PlannedItem& item : plan.items) {
      const auto* chunk = std::get_if<ckpt::TensorChunk>(&item.item.content);
      if (chunk == nullptr) continue;
      tensors[ckpt::fqn_of(item.item.path)] = {{"dtype", ckpt::torch_name(chunk->dtype)},
                                               {"shape", chunk->shape}};
    }
  }
  return tensors;
}

/// Rank 0's part: metadata, trainer state and manifest, then the commit.
class Finisher {
 public:
  Finisher(const fs::path& directory, const Group& group)
      : directory_(directory), world_size_(group.size()) {}

  void add_files(const std::vector<std::string>& from_ranks) {
    for (const std::string& text : from_ranks) {
      for (const json& file : json::parse(text)) files_.push_back(file);
    }
  }

  template <class StateOfRank>
  void write_metadata(const char* name, StateOfRank&& state_of) {
    std::vector<ckpt::DcpRankPlan> plans;
    for (int rank = 0; rank < world_size_; ++rank)
      plans.push_back(ckpt::plan_dcp_rank(rank, state_of(rank).items));
    files_.push_back(to_json(name, ckpt::write_dcp_metadata(directory_ / name, plans)));
    tensors_.update(tensors_of(plans));
  }

  void write_manifest(const TrainerState& state) {
    const json trainer = {{"version", 1},   {"step", state.step}, {"epoch", state.epoch},
                          {"lr", state.lr}, {"seed", state.seed}, {"world_size", world_size_}};
    write_file_atomically(directory_ / "trainer_state.json", trainer.dump(2) + "\n");
    if (state.scaler) write_scaler(directory_, *state.scaler);
    const json manifest = {{"version", 1},
                           {"step", state.step},
                           {"world_size", world_size_},
                           {"files", files_},
                           {"tensors", tensors_}};
    write_file_atomically(directory_ / "accel_manifest.json", manifest.dump(2) + "\n");
  }

 private:
  fs::path directory_;
  int world_size_;
  json files_ = json::array();
  json tensors_ = json::object();
};

}  // namespace

fs::path save_checkpoint(CheckpointStore& store, const ShardedModel& model, const AdamW& optimizer,
                         const core::TrainingConfig& config, const TrainerState& state, Group& group) {
  const fs::path directory = store.incomplete_path_of(state.step);
  const int rank = group.rank();
  const Mesh& mesh = model.groups().mesh();
  if (rank == 0) {
    store.begin(state.step);
    fs::create_directory(directory / kModelDirectory);
    fs::create_directory(directory / kOptimizerDirectory);
  }
  group.barrier();

  const json written = {
      to_json(kModelDirectory, write_state(directory / kModelDirectory, rank, model_state(model, rank))),
      to_json(kOptimizerDirectory,
              write_state(directory / kOptimizerDirectory, rank,
                          optimizer_state(optimizer, mesh, config.optimizer, state.lr, rank))),
  };
  write_random_state(directory, rank, state.random);

  const std::vector<std::string> all = group.exchange(written.dump());
  if (rank == 0) {
    Finisher finisher(directory, group);
    finisher.add_files(all);
    finisher.write_metadata(kModelDirectory, [&](int r) { return model_state(model, r); });
    finisher.write_metadata(kOptimizerDirectory, [&](int r) {
      return optimizer_state(optimizer, mesh, config.optimizer, state.lr, r);
    });
    finisher.write_manifest(state);
    store.commit(state.step);
    store.prune(config.checkpoint.total_limit);
  }
  group.barrier();
  return store.path_of(state.step);
}

}  // namespace accel::train
