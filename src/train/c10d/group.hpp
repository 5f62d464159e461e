#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/files/flight_record.hpp"
#include "core/config/config.hpp"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace accel::train {

/// This process's place in the job, which the launcher passes in torchrun's environment variables.
struct Rank {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 0;  ///< The number of ranks on this machine; 0 if unknown.
  std::string master_addr = "127.0.0.1";
  int master_port = 29500;

  /// Reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and LOCAL_WORLD_SIZE. An invalid value is
  /// an Error of kind kUsage, and so is a missing variable other than LOCAL_WORLD_SIZE.
  static Rank from_environment();
};

/// How long a rank waits for the others, unless launch.timeout sets another time.
inline constexpr std::chrono::milliseconds kCollectiveTimeout = std::chrono::minutes(30);

/// A collective in progress. Its output may be read after wait().
class Pending {
 public:
  Pending() = default;
  /// `event` is its number in the flight record.
  Pending(c10::intrusive_ptr<c10d::Work> work, std::uint64_t event, std::function<void()> finish = {});
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;
  ~Pending();

  /// Waits as c10d's Work::wait() does, which depends on the backend. With NCCL it orders later work of the
  /// current stream after the collective and does not block the host, so the flight record has the collective
  /// as open until a flight::HostSync. With shared memory and with Gloo it blocks the host until the
  /// collective is done, and throws the collective's error.
  void wait();

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  std::uint64_t event_ = 0;
  std::function<void()> finish_;
};

/// Ranks that work together through c10d: with NCCL on GPUs, through shared memory on the CPUs of one
/// machine, with Gloo on the CPUs of several machines; for measurements with a fake, which needs no other
/// ranks. Every operation is collective: all ranks call it in the same order with tensors of the same shape
/// and dtype. A group of one rank has no backend, unless NCCL is asked for by name.
class Group {
 public:
  /// Connects this rank with the others. Rank 0 hosts the store for the rendezvous on the master port. A
  /// backend that does not suit the device or the machines is an Error of kind kUsage. The rendezvous waits 5
  /// minutes for the other ranks. Afterwards a rank waits up to `timeout` for them, in a collective of any
  /// backend and in the gathers of strings.
  static Group connect(const Rank& rank, config::Backend backend, at::Device device,
                       std::chrono::milliseconds timeout = kCollectiveTimeout);

  /// Returns a group over an existing backend, with that backend's rank and size. One rank uses none but that
  /// of an accelerator, such as NCCL. The group has no store, so strings must not be gathered.
  static Group over(c10::intrusive_ptr<c10d::Backend> backend, at::Device device);

  Group(Group&&) noexcept;
  Group& operator=(Group&&) noexcept;
  ~Group();

  /// Returns the group of `ranks`, which include this rank and are numbered in the given order. Groups with
  /// the same `name` have no rank in common. The group has the backend that connect() was told to use, or
  /// else the best one for its ranks. Must not be called on a group from over(). Collective among `ranks`. A
  /// rank that is in several groups creates them in the same order as the other ranks.
  Group split(std::span<const int> ranks, const std::string& name);

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  /// Whether this is one rank without a backend, so that collectives have nothing to do.
  [[nodiscard]] bool is_alone() const { return backend_ == nullptr; }
  /// Returns "nccl", "shm", "gloo" or "fake", or "none" for one rank without a backend.
  [[nodiscard]] std::string backend_name() const;

  /// out [size * n] gets in [n] of every rank, in rank order.
  Pending all_gather(at::Tensor out, at::Tensor in);
  /// The same for several tensors, as one operation where the backend can coalesce them, as NCCL can: one
  /// kernel, and the latency of one. Each of `pending` may be waited for by itself.
  void all_gather(std::vector<at::Tensor> outs, std::vector<at::Tensor> ins,
                  std::span<Pending* const> pending);
  /// out [n] gets the mean over ranks of this rank's part of in [size * n].
  Pending reduce_scatter_mean(at::Tensor out, at::Tensor in);
  /// out [n] gets the sum over ranks of this rank's part of in [size * n].
  Pending reduce_scatter_sum(at::Tensor out, at::Tensor in);
  /// Replaces `tensor` by its mean over the ranks.
  Pending all_reduce_mean(at::Tensor tensor);
  /// Replaces `tensor` by its sum over the ranks.
  Pending all_reduce_sum(at::Tensor tensor);
  /// Replaces each element of `tensor` by the largest of the ranks.
  Pending all_reduce_max(at::Tensor tensor);
  /// Replaces `values` by their sum over the ranks. `more`, float64 [values.size()] on the group's device, is
  /// added to this rank's values first, unless it is undefined. The host waits for its device once, at the
  /// end.
  void all_reduce_sum(std::span<double> values, const at::Tensor& more = {});
  /// Part r of in [size * n] goes to rank r, and out [size * n] gets the parts for this rank in rank order.
  Pending all_to_all(at::Tensor out, at::Tensor in);
  /// Replaces `tensor` by rank 0's.
  void broadcast(at::Tensor tensor);
  /// Returns rank 0's `bytes`, of any length, on every rank. The other ranks' `bytes` are ignored.
  std::vector<std::byte> broadcast_bytes(std::vector<std::byte> bytes);
  /// Every rank gets every rank's `bytes`, of any length, in rank order. Each takes as much memory as the
  /// longest.
  std::vector<std::vector<std::byte>> all_gather_bytes(std::span<const std::byte> bytes);
  /// `out` gets this rank's one of `parts`. Rank 0 passes a part for each rank, of the shape and dtype of
  /// `out`. The other ranks pass none.
  void scatter(at::Tensor out, std::vector<at::Tensor> parts);
  void barrier();
  /// Ends the group after a successful run. Call it after a barrier of its ranks, or of more, when no
  /// collective is in progress. Here the ranks of an NCCL group end their communicators together; a group
  /// that is only destroyed tears its connections down, as after an error. A failure is a warning, because
  /// all work is done. Collective. No other function may follow.
  void shut_down();
  /// Every rank gets every rank's `text`, in rank order: torch's all_gather_object, whose objects are strings
  /// here. The strings go through the store, which keeps them, and each rank asks for each, so they should be
  /// small and few. A rank whose string does not arrive within the time-out is an Error that names it.
  /// Collective.
  std::vector<std::string> all_gather_object(const std::string& text);
  /// Rank 0 gets every rank's `text`, in rank order, and the other ranks get nothing: torch's gather_object.
  /// Each rank sends one message through the store, which keeps nothing, and does not wait for rank 0. A rank
  /// whose string does not arrive within the time-out is an Error of rank 0 that names it. Collective.
  std::vector<std::string> gather_object(const std::string& text);

 private:
  Group();
  void use(c10::intrusive_ptr<c10d::Backend> backend);

  int rank_ = 0;
  int size_ = 1;
  at::Device device_;
  Rank place_;  ///< This rank's place in the job, not in this group.
  config::Backend asked_ = config::Backend::kAuto;
  std::chrono::milliseconds timeout_ = kCollectiveTimeout;
  std::vector<int> members_;  ///< The ranks' numbers in the job.
  FlightGroup flight_;
  bool has_average_ = false;
  std::int64_t object_gathers_ = 0;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::Backend> backend_;
};

/// All-gathers that begin together.
class Gathers {
 public:
  /// start() is to begin the all_gather() of `group`, and to set `pending`, which must stay where it is.
  void add(Group& group, at::Tensor out, at::Tensor in, Pending& pending) {
    if (group_ != &group) start();
    group_ = &group;
    outs_.push_back(std::move(out));
    ins_.push_back(std::move(in));
    pending_.push_back(&pending);
  }
  void start() {
    if (group_ != nullptr) group_->all_gather(std::move(outs_), std::move(ins_), pending_);
    *this = {};
  }

 private:
  Group* group_ = nullptr;
  std::vector<at::Tensor> outs_;
  std::vector<at::Tensor> ins_;
  std::vector<Pending*> pending_;
};

}  // namespace accel::train
