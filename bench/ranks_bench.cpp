// Plans, wraps and loads one rank of a model that is sharded over many, whose other ranks are not there:
//
//   ranks-bench MODEL.pt WEIGHTS RANKS RANK LAYER_CLASS
//
// WEIGHTS is a file or directory of weights, or "-" for the model file's own. Prints one JSON object: of each
// stage the seconds, and the most resident memory above what there was when it began; the bytes of the shard.

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.hpp"
#include "plan/model_plan.hpp"
#include "train/c10d/fake_backend.hpp"
#include "train/c10d/group.hpp"
#include "train/fsdp/sharded_model.hpp"

namespace {

using namespace accel;

constexpr int kUsage = 2;

std::uint64_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field)) return std::strtoull(line.c_str() + field.size(), nullptr, 10) * 1024;
  }
  throw Error(ErrorKind::kFailure, "/proc/self/status has no " + field);
}

class Stages {
 public:
  /// Ends one stage, and begins the next.
  void end(const std::string& name) {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    const std::uint64_t peak = status_bytes("VmHWM:");
    result[name] = {{"seconds", seconds}, {"peak_bytes", peak > before_ ? peak - before_ : 0}};
    start();
  }
  void start() {
    std::ofstream("/proc/self/clear_refs") << "5\n";  // The peak is what there is now.
    before_ = status_bytes("VmRSS:");
    begin_ = std::chrono::steady_clock::now();
  }

  nlohmann::json result;

 private:
  std::chrono::steady_clock::time_point begin_;
  std::uint64_t before_ = 0;
};

config::Config config_of(const std::filesystem::path& model, int ranks, const std::string& layer) {
  config::Config config;
  config.launch.num_processes = ranks;
  config.fsdp.version = 2;
  config.fsdp.auto_wrap_policy = config::WrapPolicy::kTransformer;
  config.fsdp.transformer_layer_cls_to_wrap = {layer};
  config.training.emplace();
  config.training->model.path = model;
  return config;
}

int measure(const std::filesystem::path& path, const std::string& weights, int ranks, int rank,
            const std::string& layer) {
  const config::Config config = config_of(path, ranks, layer);
  Stages stages;
  stages.start();
  std::uint64_t planned = 0;
  {
    const auto archive = ArchiveModel::open(path);
    planned = footprint_of(archive, plan_model(archive, config.fsdp), config).memory.shard_bytes;
  }
  stages.end("plan");
  train::ModelFile file = train::ModelFile::open(path);
  stages.end("open");
  train::Group group = train::Group::over(c10::make_intrusive<train::FakeBackend>(rank, ranks), at::kCPU);
  train::ShardingOptions options;
  options.fsdp = config.fsdp;
  if (weights != "-") options.weights.path = weights;
  options.on_wrapped = [&] { stages.end("wrap"); };
  auto alone = std::make_unique<train::Group>(train::Group::connect({}, config::Backend::kAuto, at::kCPU));
  train::MeshGroups groups(group, {1, ranks}, nullptr, std::move(alone), nullptr);
  const train::ShardedModel model(std::move(file), options, at::kCPU, std::move(groups));
  stages.end("load");

  std::uint64_t held = 0;
  for (const auto& unit : model.units()) {
    for (const auto& buffer : unit->buffers()) held += buffer->shard().nbytes();
  }
  if (held != planned) {
    throw Error(ErrorKind::kFailure,
                fmt::format("the shard has {} bytes, and not {} as planned", held, planned));
  }
  stages.result["units"] = model.units().size();
  stages.result["shard_bytes"] = held;
  fmt::print("{}\n", stages.result.dump());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    fmt::print(stderr, "usage: ranks-bench MODEL.pt WEIGHTS RANKS RANK LAYER_CLASS\n");
    return kUsage;
  }
  int code = 1;
  try {
    code = measure(argv[1], argv[2], std::atoi(argv[3]), std::atoi(argv[4]), argv[5]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
  }
  std::fflush(nullptr);
  std::_Exit(code);
}
