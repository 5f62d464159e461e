#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <vector>

namespace accel::train {

/// One rank of a group whose other ranks do not exist: each of them seems to have what this rank has. The
/// idea and the name are those of torch.testing._internal.distributed.fake_pg. So one process can measure
/// what a rank of a thousand takes. Shapes, memory and copies are those of a real group, and results are not.
///
/// A collective is done when its function returns, and nothing is sent. Supported are all-gather,
/// reduce-scatter and all-to-all of flat tensors, all-reduce and broadcast. There is no scatter, because only
/// rank 0 has what it would scatter.
class FakeBackend : public c10d::Backend {
 public:
  static constexpr const char* kName = "fake";

  FakeBackend(int rank, int size) : Backend(rank, size) {}

  const std::string getBackendName() const override { return kName; }  // NOLINT: c10d's signature.

  /// The tensors stay as they are.
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<std::int64_t>& output_sizes,
                                               std::vector<std::int64_t>& input_sizes,
                                               const c10d::AllToAllOptions& options) override;

  void abort() override {}
  void shutdown() override {}
};

}  // namespace accel::train
