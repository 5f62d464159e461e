#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ranks/lockstep.hpp"
#include "ranks/shared_collectives.hpp"

namespace accel::train {

/// A c10d backend for CPU tensors of ranks on one machine, through memory that they share.
///
/// Collectives run on a thread of their own, in the order in which they are called. A Work's wait() blocks
/// the host until the collective is done, and throws what went wrong: an Error that names the collective, the
/// rank and the seconds. After a collective has failed, all later ones fail at once. Tensors must be
/// contiguous, and are in use until the Work is done. Supported are all-gather of any dtype, reduce-scatter
/// and all-reduce (SUM, AVG, MAX, MIN), broadcast, scatter, all-to-all and barrier. SharedCollectives says
/// what is promised of the results.
///
/// Destroying the backend gives up the collectives in progress, on this rank and on the others.
class ShmBackend : public c10d::Backend {
 public:
  static constexpr const char* kName = "shm";

  struct Options : c10d::Backend::Options {
    Options() : c10d::Backend::Options(kName) {}
    SlotGeometry geometry;
  };

  /// Creates the backend by a rendezvous of the ranks through `store`, in which they use the keys below
  /// "shm/". Each backend needs a store of its own; a PrefixStore tells several apart. If one rank cannot
  /// take part, because it is on another machine or shared memory is refused, every rank throws the same
  /// Error of kind kFailure. Collective.
  static c10::intrusive_ptr<ShmBackend> connect(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                int size, const c10::intrusive_ptr<Options>& options = {});
  ~ShmBackend() override;

  const std::string getBackendName() const override { return kName; }  // NOLINT: c10d's signature.
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }

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
  /// Only with parts of equal length: the lists of lengths must be empty.
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<std::int64_t>& output_sizes,
                                               std::vector<std::int64_t>& input_sizes,
                                               const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override;

  void abort() override { ranks_.close(); }
  void shutdown() override { stop(); }

  /// Public for intrusive_ptr only: connect() creates backends.
  ShmBackend(int rank, int size, c10::intrusive_ptr<Options> options, SharedSegment segment, PeerWatch peers);

 private:
  class ShmWork;

  c10::intrusive_ptr<c10d::Work> issue(c10d::OpType type, const char* title, std::vector<at::Tensor> inputs,
                                       std::vector<at::Tensor> outputs, std::function<void()> body);
  [[nodiscard]] std::chrono::milliseconds timeout_of(std::chrono::milliseconds asked) const;
  void run_queue();
  void stop();

  c10::intrusive_ptr<Options> options_;
  Lockstep ranks_;
  SharedCollectives collectives_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<c10::intrusive_ptr<ShmWork>> queue_;
  bool stopping_ = false;
  bool busy_ = false;
  std::thread thread_;
};

}  // namespace accel::train
