#include "train/graph/run/part_view.hpp"

#include <torch/csrc/jit/runtime/custom_operator.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "base/error.hpp"

namespace accel::train {
namespace {

ViewCheck& view_check() {
  static ViewCheck check;
  return check;
}

void check_view(torch::jit::Stack& stack) {
  const std::vector<std::int64_t> sizes = torch::jit::pop(stack).toIntVector();
  const at::Tensor tensor = torch::jit::pop(stack).toTensor();
  if (view_check()) view_check()(tensor, sizes);
}

const torch::jit::RegisterOperators view_check_registration({
    torch::jit::Operator("accel::check_view(Tensor self, int[] size) -> ()", check_view,
                         c10::AliasAnalysisKind::CONSERVATIVE),
});

}  // namespace

ViewCheckRegistration::ViewCheckRegistration(ViewCheck check) {
  if (view_check()) throw Error(ErrorKind::kFailure, "this process checks the views of a model already");
  view_check() = std::move(check);
}

ViewCheckRegistration::~ViewCheckRegistration() { view_check() = nullptr; }

}  // namespace accel::train
