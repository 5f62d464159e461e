#include "train/c10d/shm_backend.hpp"

#include <ATen/core/ivalue.h>
#include <fmt/format.h>
#include <pthread.h>

#include <exception>
#include <utility>

#include "base/error.hpp"
#include "train/c10d/shm_rendezvous.hpp"

namespace accel::train {
namespace {

/// Returns the dtype's name in headers and messages: as in Python, without "torch.".
std::string_view name_of_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    case at::kLong:
      return "int64";
    case at::kInt:
      return "int32";
    case at::kShort:
      return "int16";
    case at::kChar:
      return "int8";
    case at::kByte:
      return "uint8";
    case at::kBool:
      return "bool";
    default:
      return c10::toString(dtype);
  }
}

Error refusal(const char* collective, const std::string& why) {
  return {ErrorKind::kFailure, fmt::format("shm: {}: {}", collective, why)};
}

Element element_of(const char* collective, at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return Element::kFloat32;
    case at::kDouble:
      return Element::kFloat64;
    case at::kBFloat16:
      return Element::kBFloat16;
    case at::kHalf:
      return Element::kFloat16;
    case at::kLong:
      return Element::kInt64;
    case at::kInt:
      return Element::kInt32;
    case at::kShort:
      return Element::kInt16;
    case at::kChar:
      return Element::kInt8;
    case at::kByte:
      return Element::kUInt8;
    default:
      throw refusal(collective, fmt::format("{} cannot be reduced", name_of_dtype(dtype)));
  }
}

Reduction reduction_of(const char* collective, const c10d::ReduceOp& op, Element element) {
  Reduction reduction{};
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      reduction = Reduction::kSum;
      break;
    case c10d::ReduceOp::AVG:
      reduction = Reduction::kMean;
      break;
    case c10d::ReduceOp::MAX:
      reduction = Reduction::kMax;
      break;
    case c10d::ReduceOp::MIN:
      reduction = Reduction::kMin;
      break;
    default:
      throw refusal(collective, fmt::format("reduces with SUM, AVG, MAX or MIN, not with operation {}",
                                            static_cast<int>(op.op_)));
  }
  if (!can_reduce(element, reduction))
    throw refusal(collective, fmt::format("{} has no AVG; take the SUM", name_of(element)));
  return reduction;
}

void require_plain(const char* collective, const at::Tensor& tensor) {
  if (!tensor.defined()) throw refusal(collective, "a tensor is undefined");
  if (!tensor.device().is_cpu() || tensor.layout() != at::kStrided)
    throw refusal(collective, fmt::format("takes dense CPU tensors, found one on {}", tensor.device().str()));
  if (!tensor.is_contiguous()) throw refusal(collective, "takes contiguous tensors");
}

/// `whole` must be as long as `size` of `part`, of the same dtype.
void require_parts(const char* collective, const at::Tensor& whole, const at::Tensor& part, int size) {
  require_plain(collective, whole);
  require_plain(collective, part);
  if (whole.scalar_type() != part.scalar_type()) {
    throw refusal(collective, fmt::format("input and output are {} and {}", name_of_dtype(part.scalar_type()),
                                          name_of_dtype(whole.scalar_type())));
  }
  if (whole.numel() != part.numel() * size) {
    throw refusal(collective, fmt::format("{} elements are not {} ranks' parts of {}", whole.numel(), size,
                                          part.numel()));
  }
}

const at::Tensor& only_one(const char* collective, const std::vector<at::Tensor>& tensors) {
  if (tensors.size() != 1)
    throw refusal(collective, fmt::format("takes one tensor, found {}", tensors.size()));
  require_plain(collective, tensors.front());
  return tensors.front();
}

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

}  // namespace

class ShmBackend::ShmWork : public c10d::Work {
 public:
  ShmWork(int rank, c10d::OpType type, const char* title, std::vector<at::Tensor> inputs,
          std::vector<at::Tensor> outputs, std::function<void()> body)
      : Work(rank, type, title, inputs),
        inputs_(std::move(inputs)),
        outputs_(std::move(outputs)),
        body_(std::move(body)),
        future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}

  /// Runs the collective on the backend's thread. Returns whether it succeeded.
  bool run() {
    std::exception_ptr failure;
    try {
      body_();
    } catch (...) {
      failure = std::current_exception();
    }
    // The caller may free its tensors as soon as the work is finished.
    body_ = nullptr;
    inputs_.clear();
    if (failure == nullptr) {
      future_->markCompleted(outputs_);
    } else {
      future_->setError(failure);
    }
    finish(failure);
    return failure == nullptr;
  }

  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  std::vector<at::Tensor> inputs_;
  std::vector<at::Tensor> outputs_;
  std::function<void()> body_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

c10::intrusive_ptr<ShmBackend> ShmBackend::connect(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                   int size, const c10::intrusive_ptr<Options>& options) {
  auto used = options ? options : c10::make_intrusive<Options>();
  ShmRendezvous rendezvous =
      rendezvous_on_this_machine(*store, rank, size, Lockstep::shared_bytes(size, used->geometry));
  return c10::make_intrusive<ShmBackend>(rank, size, std::move(used), std::move(rendezvous.segment),
                                         std::move(rendezvous.peers));
}

ShmBackend::ShmBackend(int rank, int size, c10::intrusive_ptr<Options> options, SharedSegment segment,
                       PeerWatch peers)
    : Backend(rank, size),
      options_(std::move(options)),
      ranks_(std::move(segment), std::move(peers), rank, size, options_->geometry,
             [&] {
               std::vector<std::string> names;
               for (const std::uint64_t global : options_->global_ranks_in_group)
                 names.push_back(fmt::format("rank {}", global));
               return names;
             }()),
      collectives_(ranks_),
      thread_([this] { run_queue(); }) {
  ::pthread_setname_np(thread_.native_handle(), "shm");
}

ShmBackend::~ShmBackend() { stop(); }

void ShmBackend::stop() {
  {
    const std::scoped_lock lock(mutex_);
    if (!queue_.empty() || busy_) ranks_.close();
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  ranks_.close();
}

void ShmBackend::run_queue() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const c10::intrusive_ptr<ShmWork> work = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    // After half a collective the ranks are out of step, so no other collective can follow.
    if (!work->run()) ranks_.close();
    lock.lock();
    busy_ = false;
  }
}

c10::intrusive_ptr<c10d::Work> ShmBackend::issue(c10d::OpType type, const char* title,
                                                 std::vector<at::Tensor> inputs,
                                                 std::vector<at::Tensor> outputs,
                                                 std::function<void()> body) {
  auto work = c10::make_intrusive<ShmWork>(getRank(), type, title, std::move(inputs), std::move(outputs),
                                           std::move(body));
  {
    const std::scoped_lock lock(mutex_);
    if (stopping_) throw Error(ErrorKind::kFailure, "shm: the group is shut down");
    queue_.push_back(work);
  }
  changed_.notify_one();
  return work;
}

std::chrono::milliseconds ShmBackend::timeout_of(std::chrono::milliseconds asked) const {
  return asked == c10d::kUnsetTimeout ? options_->timeout : asked;
}

c10::intrusive_ptr<c10d::Work> ShmBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                           const c10d::AllgatherOptions& options) {
  require_parts("all-gather", output, input, getSize());
  const std::span<const std::byte> in = bytes_of(input);
  std::vector<std::byte*> outs;
  for (int rank = 0; rank < getSize(); ++rank)
    outs.push_back(bytes_of(output).data() + static_cast<std::size_t>(rank) * in.size());
  return issue(
      c10d::OpType::_ALLGATHER_BASE, "shm:_all_gather_base", {input}, {output},
      [this, in, outs, name = name_of_dtype(input.scalar_type()), item = input.element_size(),
       timeout = timeout_of(options.timeout)] { collectives_.all_gather(in, outs, name, item, timeout); });
}

c10::intrusive_ptr<c10d::Work> ShmBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                                const c10d::ReduceScatterOptions& options) {
  static constexpr const char* kThis = "reduce-scatter";
  require_parts(kThis, input, output, getSize());
  const Element element = element_of(kThis, input.scalar_type());
  const Reduction reduction = reduction_of(kThis, options.reduceOp, element);
  return issue(c10d::OpType::_REDUCE_SCATTER_BASE, "shm:_reduce_scatter_base", {input}, {output},
               [this, in = bytes_of(input), out = bytes_of(output), element, reduction,
                timeout = timeout_of(options.timeout)] {
                 collectives_.reduce_scatter(in, out, element, reduction, timeout);
               });
}

c10::intrusive_ptr<c10d::Work> ShmBackend::allreduce(std::vector<at::Tensor>& tensors,
                                                     const c10d::AllreduceOptions& options) {
  static constexpr const char* kThis = "all-reduce";
  const at::Tensor& tensor = only_one(kThis, tensors);
  const Element element = element_of(kThis, tensor.scalar_type());
  const Reduction reduction = reduction_of(kThis, options.reduceOp, element);
  return issue(c10d::OpType::ALLREDUCE, "shm:all_reduce", tensors, tensors,
               [this, data = bytes_of(tensor), element, reduction, timeout = timeout_of(options.timeout)] {
                 collectives_.all_reduce(data, element, reduction, timeout);
               });
}

c10::intrusive_ptr<c10d::Work> ShmBackend::broadcast(std::vector<at::Tensor>& tensors,
                                                     const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = only_one("broadcast", tensors);
  if (options.rootRank < 0 || options.rootRank >= getSize())
    throw refusal("broadcast", fmt::format("there is no rank {} among {}", options.rootRank, getSize()));
  return issue(
      c10d::OpType::BROADCAST, "shm:broadcast", tensors, tensors,
      [this, data = bytes_of(tensor), root = static_cast<int>(options.rootRank),
       name = name_of_dtype(tensor.scalar_type()), item = tensor.element_size(),
       timeout = timeout_of(options.timeout)] { collectives_.broadcast(data, root, name, item, timeout); });
}

c10::intrusive_ptr<c10d::Work> ShmBackend::scatter(std::vector<at::Tensor>& outputs,
                                                   std::vector<std::vector<at::Tensor>>& inputs,
                                                   const c10d::ScatterOptions& options) {
  static constexpr const char* kThis = "scatter";
  const at::Tensor& output = only_one(kThis, outputs);
  if (options.rootRank < 0 || options.rootRank >= getSize())
    throw refusal(kThis, fmt::format("there is no rank {} among {}", options.rootRank, getSize()));
  const auto root = static_cast<int>(options.rootRank);
  std::vector<at::Tensor> parts;
  if (getRank() == root && inputs.size() == 1) parts = inputs.front();
  const std::size_t expected = getRank() == root ? static_cast<std::size_t>(getSize()) : 0;
  if (parts.size() != expected || (expected == 0 && !inputs.empty()))
    throw refusal(kThis,
                  fmt::format("takes one list of {} input tensors, from rank {} only", getSize(), root));
  std::vector<const std::byte*> ins;
  for (const at::Tensor& part : parts) {
    require_parts(kThis, output, part, 1);
    ins.push_back(bytes_of(part).data());
  }
  return issue(
      c10d::OpType::SCATTER, "shm:scatter", parts, outputs,
      [this, ins = std::move(ins), out = bytes_of(output), root, name = name_of_dtype(output.scalar_type()),
       item = output.element_size(),
       timeout = timeout_of(options.timeout)] { collectives_.scatter(ins, out, root, name, item, timeout); });
}

c10::intrusive_ptr<c10d::Work> ShmBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                         std::vector<std::int64_t>& output_sizes,
                                                         std::vector<std::int64_t>& input_sizes,
                                                         const c10d::AllToAllOptions& options) {
  static constexpr const char* kThis = "all-to-all";
  require_parts(kThis, output, input, 1);
  if (!output_sizes.empty() || !input_sizes.empty() || input.numel() % getSize() != 0)
    throw refusal(kThis, fmt::format("takes {} parts of equal length", getSize()));
  return issue(c10d::OpType::ALLTOALL_BASE, "shm:all_to_all", {input}, {output},
               [this, in = bytes_of(input), out = bytes_of(output), name = name_of_dtype(input.scalar_type()),
                item = input.element_size(), timeout = timeout_of(options.timeout)] {
                 collectives_.all_to_all(in, out, name, item, timeout);
               });
}

c10::intrusive_ptr<c10d::Work> ShmBackend::barrier(const c10d::BarrierOptions& options) {
  return issue(c10d::OpType::BARRIER, "shm:barrier", {}, {},
               [this, timeout = timeout_of(options.timeout)] { collectives_.barrier(timeout); });
}

}  // namespace accel::train
