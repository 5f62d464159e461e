#include "train/graph/run/executor.hpp"

#include <torch/csrc/jit/passes/autocast.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/runtime/profiling_graph_executor_impl.h>

namespace accel::train {

void use_simple_executor() {
  torch::jit::getProfilingMode() = false;
  torch::jit::getExecutorMode() = false;
  torch::jit::setGraphExecutorOptimize(false);
  torch::jit::setAutocastMode(false);
}

}  // namespace accel::train
