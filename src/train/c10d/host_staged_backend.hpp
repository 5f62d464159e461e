#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <vector>

namespace accel::train {

/// Runs collectives of tensors on any device through a backend for CPU tensors. Each input is copied to the
/// host's memory, which waits for what the device was given so far. Work::wait() copies the output back. So
/// ranks with Gloo can compute on GPUs, and several of them on one GPU, where NCCL allows one rank per GPU.
///
/// This backend has the name of the inner one. It supports the collectives that Group uses, and refuses
/// others as c10d's base class does. An output does not change before wait(), which must be called.
class HostStagedBackend final : public c10d::Backend {
 public:
  explicit HostStagedBackend(c10::intrusive_ptr<c10d::Backend> inner);

  const std::string getBackendName() const override {  // NOLINT: c10d's signature.
    return inner_->getBackendName();
  }
  void setTimeout(std::chrono::milliseconds timeout) override { inner_->setTimeout(timeout); }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> scatter(std::vector<at::Tensor>& outputs,
                                         std::vector<std::vector<at::Tensor>>& inputs,
                                         const c10d::ScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<std::int64_t>& output_sizes,
                                               std::vector<std::int64_t>& input_sizes,
                                               const c10d::AllToAllOptions& options) override;

  void abort() override { inner_->abort(); }
  void shutdown() override { inner_->shutdown(); }

 private:
  c10::intrusive_ptr<c10d::Backend> inner_;
};

}  // namespace accel::train
