#include "train/checkpoint/save.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstddef>
#include <exception>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/files/atomic_file.hpp"
#include "base/files/directory.hpp"
#include "ckpt/dcp/metadata_write.hpp"
#include "ckpt/io/crc32.hpp"
#include "ckpt/store/accelerate_names.hpp"
#include "ckpt/store/manifest.hpp"
#include "ckpt/tensor/dtype.hpp"
#include "train/checkpoint/rank_state.hpp"
#include "train/checkpoint/save_checks.hpp"
#include "train/checkpoint/state_items.hpp"

namespace accel::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Values of nlohmann::json::dump()'s indent.
constexpr int kOneLine = -1;
constexpr int kIndented = 2;

json to_json(const std::string& directory, const ckpt::FileSummary& file) {
  return {{"name", directory + "/" + file.name}, {"bytes", file.bytes}, {"crc32", file.crc32}};
}

std::string hex_of(const at::Tensor& bytes) {
  std::string text;
  for (std::int64_t i = 0; i < bytes.numel(); ++i)
    text += fmt::format("{:02x}", bytes.const_data_ptr<std::uint8_t>()[i]);
  return text;
}

/// Writes a file and returns its entry in the manifest.
json write_text(const fs::path& directory, const std::string& name, const std::string& text) {
  write_file_atomically(directory / name, text);
  return {{"name", name}, {"bytes", text.size()}, {"crc32", ckpt::crc32(std::as_bytes(std::span(text)))}};
}

json write_json(const fs::path& directory, const std::string& name, const json& document, int indent) {
  return write_text(directory, name, document.dump(indent) + "\n");
}

json write_random_state(const fs::path& directory, int rank, const RandomState& state) {
  json document = {{"version", 1}, {"cpu", hex_of(state.cpu())}};
  if (state.gpu().defined()) document["cuda"] = hex_of(state.gpu());
  return write_json(directory, fmt::format("random_states_{}.json", rank), document, kOneLine);
}

/// Writes the loss scale with the keys of torch's GradScaler.state_dict().
json write_scaler(const fs::path& directory, const GradScaler& scaler) {
  const config::GradScalerConfig& config = scaler.config();
  const json document = {{"version", 1},
                         {"scale", scaler.state().scale},
                         {"growth_factor", config.growth_factor},
                         {"backoff_factor", config.backoff_factor},
                         {"growth_interval", config.growth_interval},
                         {"_growth_tracker", scaler.state().growth_tracker}};
  return write_json(directory, "scaler.json", document, kIndented);
}

/// Rank 0's part of a save: it writes each .metadata, the state of the trainer, and the manifest.
class ManifestWriter {
 public:
  ManifestWriter(const fs::path& directory, std::int64_t step, int world_size) : directory_(directory) {
    manifest_.step = step;
    manifest_.world_size = world_size;
  }

  /// `file` is what write_json or to_json returned.
  void add_file(const json& file) {
    manifest_.files[file.at("name").get<std::string>()] = {file.at("bytes").get<std::uint64_t>(),
                                                           file.at("crc32").get<std::uint32_t>()};
  }

  /// `plans` has the plan of every rank.
  void write_metadata(const std::string& name, const std::vector<ckpt::DcpRankPlan>& plans) {
    add_file(to_json(name, ckpt::write_dcp_metadata(directory_ / name, plans)));
    add_tensors(plans);
  }

  void write_manifest(const TrainerState& state) {
    add_file(write_text(directory_, ckpt::kRunStateName, ckpt::encode_run_state(state.run)));
    if (state.scaler) add_file(write_scaler(directory_, *state.scaler));
    write_file_atomically(directory_ / ckpt::kManifestName, ckpt::encode_manifest(manifest_) + "\n");
  }

 private:
  void add_tensors(const std::vector<ckpt::DcpRankPlan>& plans) {
    for (const ckpt::DcpRankPlan& plan : plans) {
      for (const ckpt::PlannedItem& item : plan.items) {
        const auto* chunk = std::get_if<ckpt::TensorChunk>(&item.item.content);
        if (chunk == nullptr) continue;
        manifest_.tensors[ckpt::fqn_of(item.item.path)] = {std::string(ckpt::torch_name(chunk->dtype)),
                                                           chunk->shape};
      }
    }
  }

  fs::path directory_;
  ckpt::Manifest manifest_;
};

/// Runs the steps of a save so that all ranks succeed or fail together. If one fails on a rank, every rank
/// throws: that rank its own Error, the others an Error that names it. What was written is removed before,
/// when no rank writes any more. Collective.
class SaveSteps {
 public:
  /// With `survives` the run goes on after a failure, so that no rank ends.
  SaveSteps(ckpt::RunCheckpoints& store, std::int64_t step, Group& group, bool survives)
      : store_(store), step_(step), group_(group), survives_(survives) {}

  /// Returns what `part` returns on each rank, in rank order.
  std::vector<json> on_every_rank(const std::function<json()>& part) {
    return finish(group_.all_gather_object(run(part)));
  }

  /// Runs `part` on rank 0 alone, while the others wait.
  void on_first_rank(const std::function<void()>& part) {
    std::string said;
    if (group_.rank() == 0) {
      said = run([&] {
        part();
        return json();
      });
    }
    const auto bytes = std::as_bytes(std::span(said));
    const std::vector<std::byte> heard = group_.broadcast_bytes({bytes.begin(), bytes.end()});
    finish({std::string(reinterpret_cast<const char*>(heard.data()), heard.size())});
  }

 private:
  std::string run(const std::function<json()>& part) {
    json said;
    try {
      said["done"] = part();
    } catch (const std::exception& error) {
      failure_ = std::current_exception();
      said = {{"error", error.what()}};
    }
    // Paths in messages need not be UTF-8.
    return said.dump(kOneLine, ' ', false, json::error_handler_t::replace);
  }

  std::vector<json> finish(const std::vector<std::string>& from_ranks) {
    std::vector<json> results;
    for (std::size_t rank = 0; rank < from_ranks.size(); ++rank) {
      json said = json::parse(from_ranks[rank]);
      if (said.contains("error")) fail(rank, said.at("error"));
      results.push_back(std::move(said["done"]));
    }
    return results;
  }

  /// Waits for the other ranks. A rank that has ended does not hold this one up.
  void wait_for_all() {
    try {
      group_.barrier();
    } catch (const std::exception&) {
      // The error that ended the rank is reported, and not this one.
    }
  }

  [[noreturn]] void fail(std::size_t rank, const std::string& why) {
    if (group_.rank() == 0) store_.discard(step_);
    // The launcher ends all ranks as soon as one has failed, and rank 0 must be done by then.
    wait_for_all();
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    // Waits until the rank that failed has reported its error and has ended, because the first report counts
    // as the cause.
    if (!survives_) wait_for_all();
    throw Error(ErrorKind::kFailure,
                fmt::format("rank {} could not save the checkpoint of step {}: {}", rank, step_, why));
  }

  ckpt::RunCheckpoints& store_;
  std::int64_t step_;
  Group& group_;
  bool survives_;
  std::exception_ptr failure_;  ///< This rank's error.
};

/// One directory of a checkpoint: what each rank writes into it. state_of() returns the same items for a rank
/// wherever it is called. What the part was made of must outlive it.
struct SavedPart {
  std::string directory;
  std::function<RankState(int rank)> state_of;
};

std::vector<SavedPart> parts_of(const ShardedModel& model, const AdamW& optimizer,
                                const config::OptimizerConfig& config, double lr) {
  const Mesh& mesh = model.groups().mesh();
  const auto own_state = [&model](int rank) { return rank_state(model, rank); };
  // The first model and the first optimizer.
  std::vector<SavedPart> parts = {
      {ckpt::sharded_directory(ckpt::kModelStem, 0), [&model](int rank) { return model_state(model, rank); }},
      {ckpt::sharded_directory(ckpt::kOptimizerStem, 0), [&optimizer, &mesh, &config, lr](int rank) {
         return optimizer_state(optimizer, mesh, config, lr, rank);
       }}};
  // Rank 0 may have nothing for itself where all others have.
  if (!own_state(0).items.empty() || !own_state(mesh.size() - 1).items.empty())
    parts.push_back({kRankStateDirectory, own_state});
  return parts;
}

}  // namespace

fs::path save_checkpoint(ckpt::RunCheckpoints& store, const ShardedModel& model, const AdamW& optimizer,
                         const config::TrainingConfig& config, const TrainerState& state, Group& group,
                         bool survives) {
  const std::int64_t step = state.run.step;
  const fs::path directory = store.incomplete_path_of(step);
  const int rank = group.rank();
  const std::vector<SavedPart> parts = parts_of(model, optimizer, config.optimizer, state.run.lr);
  std::vector<std::vector<ckpt::DcpRankPlan>> plans;  // On rank 0, for each part the plans of all ranks.
  SaveSteps steps(store, step, group, survives);
  steps.on_first_rank([&] {
    store.begin(step);
    std::uint64_t bytes = 0;
    for (const SavedPart& part : parts) {
      make_directory(directory / part.directory);
      plans.emplace_back();
      for (int r = 0; r < group.size(); ++r) {
        plans.back().push_back(ckpt::plan_dcp_rank(r, part.state_of(r).items));
        bytes += plans.back().back().total_bytes;
      }
    }
    require_space(directory, bytes);
  });

  const std::vector<json> from_ranks = steps.on_every_rank([&] {
    json files = json::array({write_random_state(directory, rank, state.random)});
    for (const SavedPart& part : parts) {
      const ckpt::FileSummary file = write_state(directory / part.directory, rank, part.state_of(rank));
      if (config.checkpoint.verify) require_same_on_disk(directory / part.directory, file);
      files.push_back(to_json(part.directory, file));
    }
    return files;
  });

  steps.on_first_rank([&] {
    ManifestWriter writer(directory, step, group.size());
    for (const json& files : from_ranks) {
      for (const json& file : files) writer.add_file(file);
    }
    for (std::size_t i = 0; i < parts.size(); ++i) writer.write_metadata(parts[i].directory, plans[i]);
    writer.write_manifest(state);
    store.commit(step);
  });
  // Done after the commit, so that the other ranks do not wait for it.
  if (rank == 0) store.prune(config.checkpoint.total_limit);
  return store.path_of(step);
}

}  // namespace accel::train
