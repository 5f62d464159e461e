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

CutCheck& cut_check() {
  static CutCheck check;
  return check;
}

void check_view(torch::jit::Stack& stack) {
  const std::vector<std::int64_t> sizes = torch::jit::pop(stack).toIntVector();
  const at::Tensor tensor = torch::jit::pop(stack).toTensor();
  if (view_check()) view_check()(tensor, sizes);
}

void check_cut(torch::jit::Stack& stack) {
  const std::int64_t dim = torch::jit::pop(stack).toInt();
  const at::Tensor tensor = torch::jit::pop(stack).toTensor();
  if (cut_check()) cut_check()(tensor, dim);
}

const torch::jit::RegisterOperators view_check_registration({
    torch::jit::Operator("accel::check_view(Tensor self, int[] size) -> ()", check_view,
                         c10::AliasAnalysisKind::CONSERVATIVE),
    torch::jit::Operator("accel::check_cut(Tensor self, int dim) -> ()", check_cut,
                         c10::AliasAnalysisKind::CONSERVATIVE),
});

}  // namespace

ViewCheckRegistration::ViewCheckRegistration(ViewCheck view, CutCheck cut) {
  if (view_check()) throw Error(ErrorKind::kFailure, "this process checks the views of a model already");
  view_check() = std::move(view);
  cut_check() = std::move(cut);
}

ViewCheckRegistration::~ViewCheckRegistration() {
  view_check() = nullptr;
  cut_check() = nullptr;
}

}  // namespace accel::train
