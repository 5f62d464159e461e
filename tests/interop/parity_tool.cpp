// Training runs of sharded models, for the parity table: run under torchrun's environment.
//
//   parity-tool JOB.json
//
// JOB is {"steps", "betas", "eps", "weight_decay", "no_decay", "cases": [{"model", "inputs",
// "arguments", "classes", "lr", "reshard", "recompute", "accumulate", "max_norm", "out"}]}, and of a case,
// unless there is nothing of the kind, "replicas", "reshard_size", "precision" (of parameters and of their
// reduction), "offload" (of "params", "activations", or both, to a storage apart) and "checkpoint", a
// directory for what is trained. `inputs` may hold {rank}, which is this rank; it is a TorchScript file whose
// buffers are batches of `arguments` tensors each, used in turn. The model returns its loss. Rank 0 writes
// {"loss": [...], "grad_norm": [...]} of all steps, means over the ranks, and "fetches", copies out of the
// storage apart.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/jit/serialization/import.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../unit/train/late_storage.hpp"
#include "base/files/file.hpp"
#include "train/c10d/group.hpp"
#include "train/c10d/split_sum.hpp"
#include "train/checkpoint/save.hpp"
#include "train/device/large_tensors.hpp"
#include "train/device/matrix_products.hpp"
#include "train/fsdp/sharded_model.hpp"
#include "train/graph/run/executor.hpp"
#include "train/optim/clip.hpp"
#include "train/optim/optimizer.hpp"

namespace {

using namespace accel;
using namespace accel::train;
using Batch = std::vector<c10::IValue>;

std::vector<Batch> batches_of(std::string path, std::size_t arguments, int rank) {
  path.replace(path.find("{rank}"), 6, std::to_string(rank));
  std::vector<Batch> batches;
  const auto holder = torch::jit::load(path);
  for (const auto& buffer : holder.buffers()) {
    if (batches.empty() || batches.back().size() == arguments) batches.emplace_back();
    batches.back().emplace_back(buffer);
  }
  return batches;
}

ShardingOptions options_of(const nlohmann::json& job, const nlohmann::json& spec,
                           const std::shared_ptr<StorageDevice>& apart) {
  ShardingOptions options;
  options.fsdp.version = 2;
  options.fsdp.auto_wrap_policy = config::WrapPolicy::kTransformer;
  options.fsdp.transformer_layer_cls_to_wrap = spec.at("classes");
  options.fsdp.reshard_after_forward = spec.at("reshard");
  options.fsdp.activation_checkpointing = spec.at("recompute");
  options.fsdp.replicate_size = spec.value("replicas", 1);
  options.fsdp.reshard_size = spec.value("reshard_size", 0);
  const auto precision = spec.value("precision", std::vector<std::string>{"", ""});
  options.fsdp.precision = {precision.at(0), precision.at(1), precision.at(0)};
  for (const std::string& what : spec.value("offload", std::vector<std::string>()))
    (what == "params" ? options.storage : options.activation_storage) = apart;
  options.optimizer.no_decay = job.at("no_decay");
  options.poison = true;
  return options;
}

void run_case(const nlohmann::json& job, const nlohmann::json& spec, Group& group) {
  const auto apart = std::make_shared<testing::LateStorage>();
  at::manual_seed(1 + static_cast<std::uint64_t>(group.rank()));
  ShardedModel model(ModelFile::open(spec.at("model").get<std::string>()), options_of(job, spec, apart),
                     at::kCPU, group);
  model.set_training(true);
  config::TrainingConfig training;
  config::OptimizerConfig& config = training.optimizer;
  config.lr = 1;
  config.options.betas = job.at("betas").get<std::array<double, 2>>();
  config.options.eps = job.at("eps").get<double>();
  config.options.weight_decay = job.at("weight_decay").get<double>();
  Optimizer optimizer(OptimizerPlan(config), model.trainable_buffers(), model.groups().place().shard);
  const auto batches = batches_of(spec.at("inputs"), spec.at("arguments"), group.rank());

  const int micro_batches = spec.at("accumulate");
  std::size_t used = 0;
  nlohmann::json losses;
  nlohmann::json norms;
  for (int step = 0; step < job.at("steps"); ++step) {
    double loss_sum = 0;
    for (int micro_batch = 1; micro_batch <= micro_batches; ++micro_batch) {
      model.begin_micro_batch(/*reduce=*/micro_batch == micro_batches);
      const at::Tensor loss = model.forward(batches[used++ % batches.size()]).toTensor() / micro_batches;
      loss.backward();
      model.finish_backward();
      loss_sum += loss.item<double>();
    }
    std::vector<double> sums = sum_over_ranks(
        std::array<SplitNumber, 2>{loss_sum,
                                   gradient_square_sum(model.trainable_buffers(), model.groups().mesh())},
        group);
    sums[1] /= model.groups().mesh().replicas();
    losses.push_back(sums[0] / group.size());
    norms.push_back(std::sqrt(sums[1]));
    if (!spec.at("max_norm").is_null())
      scale_gradients(model.trainable_buffers(), clip_factor(std::sqrt(sums[1]), spec.at("max_norm")));
    optimizer.step(spec.at("lr"));
    model.clear_gradients();
  }
  if (spec.contains("checkpoint")) {
    ckpt::RunCheckpoints store(spec.at("checkpoint").get<std::string>());
    TrainerState state;
    state.run.step = job.at("steps");
    state.run.lr = spec.at("lr");
    state.next_scale = spec.at("lr");
    CheckpointSaver saver(store, model, optimizer, training, group, group.size());
    saver.begin(std::move(state), /*survives=*/false, /*waits=*/true);
    saver.finish();
  }
  if (group.rank() == 0)
    std::ofstream(spec.at("out").get<std::string>())
        << nlohmann::json{{"loss", losses}, {"grad_norm", norms}, {"fetches", apart->fetched}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    use_simple_executor();
    keep_memory_of_large_tensors();
    if (onednn_multiplies_faster()) multiply_with_onednn();
    at::set_num_threads(1);
    Group group = Group::connect(Rank::from_environment(), config::Backend::kAuto, at::kCPU);
    const auto job = nlohmann::json::parse(read_text_file(argv[1], 1 << 20));
    for (const auto& spec : job.at("cases")) run_case(job, spec, group);
    group.barrier();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "parity-tool: %s\n", e.what());
    std::fflush(nullptr);
    std::_Exit(1);
  }
  std::fflush(nullptr);
  std::_Exit(0);
}
