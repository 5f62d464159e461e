#include "train/checkpoint/save_files.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <variant>

#include "base/error.hpp"
#include "base/files/atomic_file.hpp"
#include "ckpt/dcp/metadata_write.hpp"
#include "ckpt/dcp/rank_write.hpp"
#include "ckpt/io/crc32.hpp"
#include "ckpt/io/summed_file.hpp"
#include "ckpt/pickle/value.hpp"
#include "ckpt/pickle/writer.hpp"
#include "ckpt/store/adapter_names.hpp"
#include "ckpt/store/manifest.hpp"
#include "ckpt/tensor/dtype.hpp"
#include "ckpt/torch/archive.hpp"
#include "train/checkpoint/other_forms.hpp"
#include "train/checkpoint/save_checks.hpp"

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

json write_random_state(const fs::path& directory, int rank, std::int64_t step, const RandomState& state) {
  json document = {{"version", 1}, {"rank", rank}, {"step", step}, {"cpu", hex_of(state.cpu())}};
  if (state.gpu().defined()) document[random_state_name(*state.gpu_device())] = hex_of(state.gpu());
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

/// Writes a dict of plain values as torch.save does. Returns its entry in the manifest.
json write_torch_file(const fs::path& directory, const std::string& name, ckpt::pickle::Dict dict) {
  ckpt::SummedFile file(directory / name);
  const ckpt::TorchArchive archive(ckpt::pickle::write(std::move(dict)), {}, fs::path(name).stem().string());
  archive.write(file, {});
  const ckpt::FileSummary written = file.finish();
  return {{"name", name}, {"bytes", written.bytes}, {"crc32", written.crc32}};
}

/// Writes what Accelerator.load_state reads of a scheduler: the state of a LambdaLR. AcceleratedScheduler
/// makes as many steps as there are ranks with each step of the optimizer, unless split_batches is set.
json write_scheduler(const SaveJob& job, std::size_t optimizer) {
  const std::int64_t steps = job.state.run.optimizer_steps * job.world_size;
  ckpt::pickle::List base;
  ckpt::pickle::List last;
  ckpt::pickle::List lambdas;
  for (const double rate : job.base_rates[optimizer]) {
    base.items.emplace_back(rate);
    last.items.emplace_back(rate * job.state.next_scale);
    lambdas.items.emplace_back(ckpt::pickle::None{});
  }
  const std::string name = optimizer == 0 ? "scheduler.bin" : fmt::format("scheduler_{}.bin", optimizer);
  return write_torch_file(job.directory, name,
                          {{{"base_lrs", base},
                            {"last_epoch", steps},
                            {"_step_count", steps + 1},
                            {"_is_initial", false},
                            {"_get_lr_called_within_step", false},
                            {"_last_lr", last},
                            {"lr_lambdas", lambdas}}});
}

/// Writes the loss scale for Accelerator.load_state.
json write_torch_scaler(const fs::path& directory, const GradScaler& scaler) {
  const config::GradScalerConfig& config = scaler.config();
  return write_torch_file(directory, "scaler.pt",
                          {{{"scale", scaler.state().scale},
                            {"growth_factor", config.growth_factor},
                            {"backoff_factor", config.backoff_factor},
                            {"growth_interval", config.growth_interval},
                            {"_growth_tracker", scaler.state().growth_tracker}}});
}

ckpt::FileSummary write_part(const fs::path& directory, const SavedPart& part, Snapshot& snapshot,
                             const std::atomic<bool>& cancelled) {
  std::optional<std::size_t> at;  // The item that is being written.
  std::uint64_t given = 0;        // Its bytes so far.
  ckpt::FileSummary file =
      ckpt::write_dcp_rank(directory, part.plan, [&](std::size_t index) -> std::span<const std::byte> {
        if (cancelled) throw Error(ErrorKind::kFailure, "the save was cancelled");
        if (at != index) {
          if (at) snapshot.written(part.sources[*at]);
          at = index;
          given = 0;
        }
        const std::span<const std::byte> bytes = snapshot.read(part.sources[index], given);
        given += bytes.size();
        return bytes;
      });
  if (at) snapshot.written(part.sources[*at]);
  return file;
}

void add_tensors(ckpt::Manifest& manifest, const std::vector<ckpt::DcpRankPlan>& plans) {
  for (const ckpt::DcpRankPlan& plan : plans) {
    for (const ckpt::PlannedItem& item : plan.items) {
      const auto* chunk = std::get_if<ckpt::TensorChunk>(&item.item.content);
      if (chunk == nullptr) continue;
      manifest.tensors[ckpt::fqn_of(item.item.path)] = {std::string(ckpt::torch_name(chunk->dtype)),
                                                        chunk->shape};
    }
  }
}

}  // namespace

json write_files(const SaveJob& job, Snapshot& snapshot, const std::atomic<bool>& cancelled) {
  json files =
      json::array({write_random_state(job.directory, job.rank, job.state.run.step, job.state.random)});
  for (const SavedPart& part : job.parts) {
    const ckpt::FileSummary file = write_part(job.directory / part.directory, part, snapshot, cancelled);
    files.push_back(to_json(part.directory, file));
  }
  if (!job.verify) return files;
  for (const json& file : files) {
    if (cancelled) throw Error(ErrorKind::kFailure, "the save was cancelled");
    require_same_on_disk(job.directory,
                         {file.at("name").get<std::string>(), file.at("bytes").get<std::uint64_t>(),
                          file.at("crc32").get<std::uint32_t>()});
  }
  return files;
}

std::uint64_t write_manifest(const SaveJob& job, const std::vector<json>& files) {
  ckpt::Manifest manifest;
  manifest.step = job.state.run.step;
  manifest.world_size = job.world_size;
  manifest.tied = job.tied;
  const auto add_file = [&](const json& file) {
    manifest.files[file.at("name").get<std::string>()] = {file.at("bytes").get<std::uint64_t>(),
                                                          file.at("crc32").get<std::uint32_t>()};
  };
  for (const json& rank_files : files) {
    for (const json& file : rank_files) add_file(file);
  }
  for (const SavedPart& part : job.parts) {
    std::vector<ckpt::DcpRankPlan> plans = {part.plan};
    for (int rank = 1; rank < job.world_size; ++rank)
      plans.push_back(ckpt::plan_dcp_rank(rank, part.items_of(rank)));
    add_file(to_json(part.directory, ckpt::write_dcp_metadata(job.directory / part.directory, plans)));
    const std::vector<ckpt::FileSummary> converted =
        convert_part(job.directory, part.directory, job.type, job.world_size, job.tied);
    if (converted.empty()) {
      add_tensors(manifest, plans);
      continue;
    }
    std::erase_if(manifest.files,
                  [&](const auto& file) { return file.first.starts_with(part.directory + "/"); });
    for (const ckpt::FileSummary& file : converted) {
      if (job.verify) require_same_on_disk(job.directory, file);
      manifest.files[file.name] = {file.bytes, file.crc32};
    }
  }
  add_file(write_text(job.directory, ckpt::kRunStateName, ckpt::encode_run_state(job.state.run)));
  if (!job.weight_conversions.empty())
    add_file(write_text(job.directory, ckpt::kWeightConversionsName, job.weight_conversions + "\n"));
  if (!job.adapter_config.empty())
    add_file(write_text(job.directory, std::string(ckpt::kAdapterConfigName), job.adapter_config));
  for (std::size_t i = 0; i < job.base_rates.size(); ++i) add_file(write_scheduler(job, i));
  if (job.state.scaler) {
    add_file(write_scaler(job.directory, *job.state.scaler));
    add_file(write_torch_scaler(job.directory, *job.state.scaler));
  }
  const std::string text = ckpt::encode_manifest(manifest) + "\n";
  write_file_atomically(job.directory / ckpt::kManifestName, text);
  std::uint64_t bytes = text.size();
  for (const auto& [name, file] : manifest.files) bytes += file.bytes;
  return bytes;
}

}  // namespace accel::train
