// Collectives as NCCL has them: each group has a stream, a call enqueues work on it behind the current
// stream, and wait() orders the current stream behind that and does not block the host. The bytes travel
// through the shared memory of ShmBackend.

#include "train/c10d/nccl_plugin.hpp"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device.hpp"
#include "train/c10d/shm_backend.hpp"

namespace accel::sim {
namespace {

using c10d::Work;
using Inner = c10::intrusive_ptr<Work>;
using Inners = std::vector<Inner>;

/// A collective that has been enqueued.
class SimWork final : public Work {
 public:
  struct Parts {
    std::string name;
    StreamNumber stream = 0;
    EventState done;      ///< Where the group's stream stands behind the collective.
    Seconds seconds = 0;  ///< How long it takes.
    std::size_t bytes = 0;
    Inners inners;                    ///< What moves the bytes; none in a group of one rank.
    Inner ready;                      ///< The exchange of `begins`.
    at::Tensor begins;                ///< When the last rank is ready to begin: float64 [1].
    std::vector<at::Tensor> tensors;  ///< They live until the wait, as in ProcessGroupNCCL.
  };

  SimWork(c10d::OpType type, Parts parts)
      : Work(-1, type), parts_(std::move(parts)), device_(parts_.tensors.front().device()) {}

  bool isCompleted() override {
    return std::all_of(parts_.inners.begin(), parts_.inners.end(),
                       [](const Inner& w) { return w->isCompleted(); });
  }
  bool isSuccess() const override {
    return std::all_of(parts_.inners.begin(), parts_.inners.end(),
                       [](const Inner& w) { return w->isSuccess(); });
  }
  std::vector<at::Tensor> result() override { return parts_.tensors; }
  void synchronize() override { wait(kNoTimeout); }

  bool wait(std::chrono::milliseconds timeout) override {
    if (!std::exchange(waited_, true)) finish(timeout);
    const OnDeviceOf guard(device_);
    Device& device = Device::instance();
    device.wait(device.current_stream(), parts_.done);
    return true;
  }

 private:
  // Real time passes here, until the other ranks have sent. In the model the host does not wait.
  void finish(std::chrono::milliseconds timeout) {
    if (parts_.ready != nullptr) parts_.ready->wait(timeout);
    for (const Inner& inner : parts_.inners) inner->wait(timeout);
    Device& device = Device::instance();
    const std::lock_guard lock(device.mutex());
    device.timeline().collective(parts_.stream, parts_.name, parts_.begins.item<double>(), parts_.seconds,
                                 parts_.bytes);
    parts_.done.time = device.timeline().end_of(parts_.stream);
    parts_.tensors.clear();
  }

  Parts parts_;
  at::Device device_;
  bool waited_ = false;
};

class SimNccl final : public c10d::Backend {
 public:
  SimNccl(const accel::train::NcclRequest& request, c10::intrusive_ptr<c10d::Backend> inner)
      : Backend(request.rank, static_cast<int>(request.members.size())),
        inner_(std::move(inner)),
        stream_(Device::instance().new_stream("nccl " + request.name)) {}

  const std::string getBackendName() const override { return "nccl"; }  // NOLINT: c10d's signature.

  Inner broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    return enqueue(c10d::OpType::BROADCAST, "broadcast", {}, tensors, 1,
                   [&](auto&, auto& outputs) { return Inners{inner_->broadcast(outputs, options)}; });
  }
  Inner allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    return enqueue(c10d::OpType::ALLREDUCE, "all-reduce", {}, tensors, 2 * share(),
                   [&](auto&, auto& outputs) { return Inners{inner_->allreduce(outputs, options)}; });
  }
  Inner _allgather_base(at::Tensor& output, at::Tensor& input,
                        const c10d::AllgatherOptions& options) override {
    return enqueue(c10d::OpType::_ALLGATHER_BASE, "all-gather", {input}, {output}, share(),
                   [&](auto& inputs, auto& outputs) {
                     return Inners{inner_->_allgather_base(outputs.front(), inputs.front(), options)};
                   });
  }
  bool supportsCoalescing() const override { return true; }
  Inner allgather_into_tensor_coalesced(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                                        const c10d::AllgatherOptions& options) override {
    return enqueue(c10d::OpType::COALESCED, "all-gather", inputs, outputs, share(), [&](auto& in, auto& out) {
      Inners all;
      for (std::size_t i = 0; i < in.size(); ++i)
        all.push_back(inner_->_allgather_base(out[i], in[i], options));
      return all;
    });
  }
  Inner _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                             const c10d::ReduceScatterOptions& options) override {
    return enqueue(c10d::OpType::_REDUCE_SCATTER_BASE, "reduce-scatter", {input}, {output},
                   share() * getSize(), [&](auto& inputs, auto& outputs) {
                     return Inners{inner_->_reduce_scatter_base(outputs.front(), inputs.front(), options)};
                   });
  }
  Inner scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                const c10d::ScatterOptions& options) override {
    const std::vector<at::Tensor> parts = inputs.empty() ? std::vector<at::Tensor>() : inputs.front();
    return enqueue(c10d::OpType::SCATTER, "scatter", parts, outputs, 1, [&](auto& sent, auto& received) {
      std::vector<std::vector<at::Tensor>> lists;
      if (!inputs.empty()) lists.push_back(sent);
      return Inners{inner_->scatter(received, lists, options)};
    });
  }
  Inner alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_sizes,
                      std::vector<std::int64_t>& input_sizes, const c10d::AllToAllOptions& options) override {
    return enqueue(c10d::OpType::ALLTOALL_BASE, "all-to-all", {input}, {output}, share(),
                   [&](auto& inputs, auto& outputs) {
                     return Inners{inner_->alltoall_base(outputs.front(), inputs.front(), output_sizes,
                                                         input_sizes, options)};
                   });
  }
  Inner barrier(const c10d::BarrierOptions& /*options*/) override {
    std::vector<at::Tensor> one = {
        at::zeros({1}, at::TensorOptions().device(at::Device(kSim, current_device())))};
    return allreduce(one, {});
  }

  void setTimeout(std::chrono::milliseconds timeout) override {
    if (inner_ != nullptr) inner_->setTimeout(timeout);
  }
  void abort() override {
    if (inner_ != nullptr) inner_->abort();
  }
  void shutdown() override {
    if (inner_ != nullptr) inner_->shutdown();
  }

 private:
  using Tensors = std::vector<at::Tensor>;

  /// The part of the bytes that a rank of a ring sends.
  [[nodiscard]] double share() const { return (getSize() - 1.0) / getSize(); }

  /// `parts` times the bytes of the outputs is what a rank sends.
  template <class Call>
  Inner enqueue(c10d::OpType type, const char* name, Tensors inputs, Tensors outputs, double parts,
                Call call) {
    const OnDeviceOf guard(outputs.front());
    Device& device = Device::instance();
    // The group's stream begins where the current stream stands.
    const StreamNumber current = device.current_stream();
    device.wait(stream_, device.record(current));
    Device::Work work(device, stream_, name);
    for (const at::Tensor& tensor : inputs) check(name, tensor), work.access(tensor, /*writes=*/false);
    for (const at::Tensor& tensor : outputs) check(name, tensor), work.access(tensor, /*writes=*/true);

    SimWork::Parts made;
    made.name = name;
    made.stream = stream_;
    made.done = device.record(stream_);
    made.done.cause = name;
    const Speeds& speeds = device.timeline().speeds();
    std::size_t bytes = 0;
    for (const at::Tensor& tensor : outputs) bytes += tensor.nbytes();
    made.bytes = bytes;
    made.seconds = speeds.collective_s + parts * static_cast<double>(bytes) / speeds.link_bytes;
    made.begins = at::full({1}, device.timeline().enqueue(current), at::kDouble);
    Tensors in = aliases(inputs);
    Tensors out = aliases(outputs);
    if (inner_ != nullptr) {
      Tensors begins = {made.begins};
      c10d::AllreduceOptions latest;
      latest.reduceOp = c10d::ReduceOp::MAX;
      made.ready = inner_->allreduce(begins, latest);
      if (!device.leaves_out(bytes)) made.inners = call(in, out);
    } else if (!in.empty() && !device.leaves_out(bytes)) {
      const at::NoGradGuard no_grad;
      for (std::size_t i = 0; i < out.size(); ++i) out[i].copy_(in[i].view(out[i].sizes()));
    }
    for (Tensors* list : {&inputs, &outputs})
      made.tensors.insert(made.tensors.end(), list->begin(), list->end());
    return c10::make_intrusive<SimWork>(type, std::move(made));
  }

  static void check(const char* name, const at::Tensor& tensor) {
    TORCH_CHECK(tensor.device().type() == kSim, name, ": NCCL takes tensors of the device, found one on ",
                tensor.device());
    TORCH_CHECK(tensor.is_contiguous(), name, ": NCCL takes contiguous tensors");
  }

  static Tensors aliases(const Tensors& tensors) {
    Tensors all;
    for (const at::Tensor& tensor : tensors) all.push_back(Device::instance().on_cpu(tensor));
    return all;
  }

  c10::intrusive_ptr<c10d::Backend> inner_;
  StreamNumber stream_;
};

}  // namespace
}  // namespace accel::sim

extern "C" __attribute__((visibility("default"))) void accel_nccl_versions(
    accel::train::NcclVersions& versions) {
  versions.header = versions.libtorch = versions.library = {2, 0, 0};
}

extern "C" __attribute__((visibility("default"))) void accel_make_nccl(
    const accel::train::NcclRequest& request, c10::intrusive_ptr<c10d::Backend>& backend) {
  c10::intrusive_ptr<c10d::Backend> inner;
  if (request.members.size() > 1) {
    const auto options = c10::make_intrusive<accel::train::ShmBackend::Options>();
    options->timeout = request.timeout;
    options->global_ranks_in_group.assign(request.members.begin(), request.members.end());
    inner = accel::train::ShmBackend::connect(request.store, request.rank,
                                              static_cast<int>(request.members.size()), options);
  }
  backend = c10::make_intrusive<accel::sim::SimNccl>(request, std::move(inner));
}
