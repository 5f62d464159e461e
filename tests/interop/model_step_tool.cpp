// One backward of sharded models, for the comparison with Python: run under torchrun's environment.
//
//   model-step-tool CASES.json
//
// CASES is a list of {model, inputs, out, classes, reshard, recompute, training, steps, prefetch}; with
// training: false only the loss in evaluation is found, with steps the last of so many is. `inputs` and `out`
// may hold {rank}, which is this rank. Inputs are the buffers of a TorchScript file, in order; the model
// returns its loss. Rank 0 writes {"loss": this rank's, "buffer/NAME": ..., "gradient/NAME": the mean over
// the ranks} with pickle_save.

#include <ATen/ATen.h>
#include <torch/csrc/api/include/torch/serialize.h>
#include <torch/csrc/jit/serialization/import.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/files/file.hpp"
#include "base/text.hpp"
#include "train/c10d/group.hpp"
#include "train/device/large_tensors.hpp"
#include "train/device/matrix_products.hpp"
#include "train/fsdp/sharded_model.hpp"
#include "train/graph/run/executor.hpp"

namespace {

using namespace accel;
using namespace accel::train;

std::string for_rank(std::string path, int rank) {
  const std::size_t at = path.find("{rank}");
  return at == std::string::npos ? path : path.replace(at, 6, std::to_string(rank));
}

void write(const std::string& path, const c10::Dict<std::string, at::Tensor>& values) {
  const std::vector<char> bytes = torch::pickle_save(values);
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

void run_case(const nlohmann::json& spec, Group& group) {
  ShardingOptions options;
  options.fsdp.version = 2;
  options.fsdp.auto_wrap_policy = config::WrapPolicy::kTransformer;
  options.fsdp.transformer_layer_cls_to_wrap = spec.at("classes");
  options.fsdp.reshard_after_forward = spec.at("reshard");
  options.fsdp.activation_checkpointing = spec.at("recompute");
  options.fsdp.forward_prefetch = options.fsdp.backward_prefetch = spec.value("prefetch", true);
  options.poison = true;
  ShardedModel model(ModelFile::open(spec.at("model").get<std::string>()), options, at::kCPU, group);
  std::vector<c10::IValue> inputs;
  const auto holder = torch::jit::load(for_rank(spec.at("inputs"), group.rank()));
  for (const auto& buffer : holder.buffers()) inputs.emplace_back(buffer);

  at::manual_seed(1);
  c10::Dict<std::string, at::Tensor> found;
  const bool training = spec.value("training", true);
  model.set_training(training);
  if (!training) {
    const at::NoGradGuard no_grad;
    found.insert("loss", model.forward(inputs).toTensor());
    if (group.rank() == 0) write(spec.at("out"), found);
    return;
  }
  // What is gathered ahead is known from the second step on.
  at::Tensor loss;
  for (int step = 0; step < spec.value("steps", 1); ++step) {
    model.clear_gradients();
    model.begin_micro_batch(/*reduce=*/true);
    loss = model.forward(inputs).toTensor();
    loss.backward();
    model.finish_backward();
  }
  found.insert("loss", loss.detach());
  found.insert("gathered_ahead", at::scalar_tensor(model.gathered_ahead(), at::kLong));
  found.insert("most_unsharded", at::scalar_tensor(model.most_unsharded(), at::kLong));
  for (const auto& [name, buffer] : model.persistent_buffers()) found.insert("buffer/" + name, buffer);
  for (const FlatBuffer* buffer : model.trainable_buffers()) {
    const at::Tensor whole = at::empty({buffer->layout().numel()}, buffer->gradient().options());
    group.all_gather(whole, buffer->gradient()).wait();
    for (const FlatParameter& parameter : buffer->layout().parameters) {
      found.insert("gradient/" + parameter.spec.fqns[0],
                   whole.narrow(0, parameter.offset, parameter.numel).view(parameter.spec.shape).clone());
    }
  }
  if (group.rank() == 0) write(spec.at("out"), found);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    use_simple_executor();
    keep_memory_of_large_tensors();
    if (onednn_multiplies_faster()) multiply_with_onednn();
    Group group = Group::connect(Rank::from_environment(), config::Backend::kAuto, at::kCPU);
    for (const auto& spec : nlohmann::json::parse(read_text_file(argv[1], 1 << 20))) run_case(spec, group);
    group.barrier();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "model-step-tool: %s\n", e.what());
    std::fflush(nullptr);
    std::_Exit(1);
  }
  std::fflush(nullptr);
  std::_Exit(0);
}
