#include "train/c10d/fake_backend.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstddef>

namespace accel::train {
namespace {

class FakeWork final : public c10d::Work {
 public:
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
};

/// Replaces `tensor` by the reduction of as many copies of it as there are ranks. All reductions that Group
/// asks for leave it as it is, except the sum.
void reduce_copies(at::Tensor& tensor, const c10d::ReduceOp& op, int ranks) {
  if (op == c10d::ReduceOp::SUM) tensor.mul_(ranks);
}

}  // namespace

c10::intrusive_ptr<c10d::Work> FakeBackend::broadcast(std::vector<at::Tensor>& /*tensors*/,
                                                      const c10d::BroadcastOptions& /*options*/) {
  return c10::make_intrusive<FakeWork>();
}

c10::intrusive_ptr<c10d::Work> FakeBackend::allreduce(std::vector<at::Tensor>& tensors,
                                                      const c10d::AllreduceOptions& options) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& tensor : tensors) reduce_copies(tensor, options.reduceOp, getSize());
  return c10::make_intrusive<FakeWork>();
}

c10::intrusive_ptr<c10d::Work> FakeBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                            const c10d::AllgatherOptions& /*options*/) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& part : output.chunk(getSize())) part.copy_(input);
  return c10::make_intrusive<FakeWork>();
}

c10::intrusive_ptr<c10d::Work> FakeBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                                 const c10d::ReduceScatterOptions& options) {
  const at::NoGradGuard no_grad;
  output.copy_(input.chunk(getSize()).at(static_cast<std::size_t>(getRank())));
  reduce_copies(output, options.reduceOp, getSize());
  return c10::make_intrusive<FakeWork>();
}

c10::intrusive_ptr<c10d::Work> FakeBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                          std::vector<std::int64_t>& /*output_sizes*/,
                                                          std::vector<std::int64_t>& /*input_sizes*/,
                                                          const c10d::AllToAllOptions& /*options*/) {
  const at::NoGradGuard no_grad;
  const at::Tensor own = input.chunk(getSize()).at(static_cast<std::size_t>(getRank()));
  for (const at::Tensor& part : output.chunk(getSize())) part.copy_(own);
  return c10::make_intrusive<FakeWork>();
}

}  // namespace accel::train
