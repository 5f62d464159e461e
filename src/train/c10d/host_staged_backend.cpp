#include "train/c10d/host_staged_backend.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "base/files/flight_record.hpp"

namespace accel::train {
namespace {

at::Tensor on_host(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().device(at::kCPU).requires_grad(false));
}

at::Tensor copied_to_host(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  at::Tensor copy = on_host(tensor);
  const flight::HostSync sync(!tensor.is_cpu());
  copy.copy_(tensor);
  return copy;
}

/// A collective of host tensors, whose output wait() copies to `output`.
class StagedWork final : public c10d::Work {
 public:
  StagedWork(c10::intrusive_ptr<c10d::Work> inner, at::Tensor host, at::Tensor output)
      : inner_(std::move(inner)), host_(std::move(host)), output_(std::move(output)) {}

  bool isCompleted() override { return inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }

  bool wait(std::chrono::milliseconds timeout) override {
    if (!host_.defined()) return true;
    inner_->wait(timeout);
    const at::NoGradGuard no_grad;
    const flight::HostSync sync(!output_.is_cpu());
    output_.copy_(std::exchange(host_, {}));
    return true;
  }
  std::vector<at::Tensor> result() override { return {output_}; }

 private:
  c10::intrusive_ptr<c10d::Work> inner_;
  at::Tensor host_;  ///< The collective's output, until it is copied.
  at::Tensor output_;
};

}  // namespace

HostStagedBackend::HostStagedBackend(c10::intrusive_ptr<c10d::Backend> inner)
    : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {}

c10::intrusive_ptr<c10d::Work> HostStagedBackend::broadcast(std::vector<at::Tensor>& tensors,
                                                            const c10d::BroadcastOptions& options) {
  std::vector<at::Tensor> host = {copied_to_host(tensors.at(0))};
  auto work = inner_->broadcast(host, options);
  return c10::make_intrusive<StagedWork>(std::move(work), host.front(), tensors.front());
}

c10::intrusive_ptr<c10d::Work> HostStagedBackend::allreduce(std::vector<at::Tensor>& tensors,
                                                            const c10d::AllreduceOptions& options) {
  std::vector<at::Tensor> host = {copied_to_host(tensors.at(0))};
  auto work = inner_->allreduce(host, options);
  return c10::make_intrusive<StagedWork>(std::move(work), host.front(), tensors.front());
}

c10::intrusive_ptr<c10d::Work> HostStagedBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                                  const c10d::AllgatherOptions& options) {
  at::Tensor in = copied_to_host(input);
  at::Tensor out = on_host(output);
  auto work = inner_->_allgather_base(out, in, options);
  return c10::make_intrusive<StagedWork>(std::move(work), out, output);
}

c10::intrusive_ptr<c10d::Work> HostStagedBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  at::Tensor in = copied_to_host(input);
  at::Tensor out = on_host(output);
  auto work = inner_->_reduce_scatter_base(out, in, options);
  return c10::make_intrusive<StagedWork>(std::move(work), out, output);
}

c10::intrusive_ptr<c10d::Work> HostStagedBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                                std::vector<std::int64_t>& output_sizes,
                                                                std::vector<std::int64_t>& input_sizes,
                                                                const c10d::AllToAllOptions& options) {
  at::Tensor in = copied_to_host(input);
  at::Tensor out = on_host(output);
  auto work = inner_->alltoall_base(out, in, output_sizes, input_sizes, options);
  return c10::make_intrusive<StagedWork>(std::move(work), out, output);
}

c10::intrusive_ptr<c10d::Work> HostStagedBackend::scatter(std::vector<at::Tensor>& outputs,
                                                          std::vector<std::vector<at::Tensor>>& inputs,
                                                          const c10d::ScatterOptions& options) {
  std::vector<at::Tensor> host = {on_host(outputs.at(0))};
  std::vector<std::vector<at::Tensor>> parts;
  for (const std::vector<at::Tensor>& rank_inputs : inputs) {
    parts.emplace_back();
    for (const at::Tensor& part : rank_inputs) parts.back().push_back(copied_to_host(part));
  }
  auto work = inner_->scatter(host, parts, options);
  return c10::make_intrusive<StagedWork>(std::move(work), host.front(), outputs.front());
}

}  // namespace accel::train
