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
#include <vector>

#include "core/config/config.hpp"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace accel::train {

/// This process's place in the job, as the launcher says it in torchrun's variables.
struct Rank {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 0;  ///< Ranks on this machine; 0: unknown.
  std::string master_addr = "127.0.0.1";
  int master_port = 29500;

  /// From RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and LOCAL_WORLD_SIZE; a wrong one, or one
  /// but the last missing, is an Error of kind kUsage.
  static Rank from_environment();
};

/// How long a rank waits for the others, unless the configuration says otherwise
/// (launch.collective_timeout).
inline constexpr std::chrono::milliseconds kCollectiveTimeout = std::chrono::minutes(30);

/// A collective under way; wait() before its output is read.
class Pending {
 public:
  Pending() = default;
  explicit Pending(c10::intrusive_ptr<c10d::Work> work, std::function<void()> finish = {});
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;
  ~Pending();

  void wait();

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  std::function<void()> finish_;
};

/// Ranks that work together: c10d with NCCL on a GPU; on CPUs of one machine memory that they share, of
/// several machines Gloo. Every operation is collective:
/// all ranks call it in the same order with tensors of the same shape and dtype. With one rank there is no
/// backend at all, unless NCCL is asked for by name.
class Group {
 public:
  /// Meets the other ranks; rank 0 hosts the store on the master port. A backend that does not suit the
  /// device or the machines is an Error of kind kUsage. `timeout` is how long a rank waits for the others
  /// afterwards, be it in a collective of any backend or in all_gather_object(); to meet it waits 5 minutes.
  static Group connect(const Rank& rank, core::Backend backend, at::Device device,
                       std::chrono::milliseconds timeout = kCollectiveTimeout);

  /// A group over a backend that somebody else made, whose rank and size it has; without a store, so
  /// all_gather_object() must not be called.
  static Group over(c10::intrusive_ptr<c10d::Backend> backend, at::Device device);

  Group(Group&&) noexcept;
  Group& operator=(Group&&) noexcept;
  ~Group();

  /// The group of `ranks`, this rank among them, numbered in that order; groups of one `name` have no rank in
  /// common. It has the best backend for its ranks, or the one that connect() was told to use. Not of a group
  /// from over(). Collective among `ranks`; a rank that is in several groups makes them in the same order as
  /// the others.
  Group split(std::span<const int> ranks, const std::string& name);

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  /// "nccl", "shm", "gloo", or "none" for one rank.
  [[nodiscard]] std::string backend_name() const;

  /// out [size * n] gets in [n] of every rank, in rank order.
  Pending all_gather(at::Tensor out, at::Tensor in);
  /// out [n] gets the mean over ranks of this rank's part of in [size * n].
  Pending reduce_scatter_mean(at::Tensor out, at::Tensor in);
  /// The same with the sum.
  Pending reduce_scatter_sum(at::Tensor out, at::Tensor in);
  /// Replaces `tensor` by its mean over the ranks, or their sum.
  Pending all_reduce_mean(at::Tensor tensor);
  Pending all_reduce_sum(at::Tensor tensor);
  /// Replaces `values` by their sum over the ranks.
  void all_reduce_sum(std::span<double> values);
  /// `tensor` becomes that of rank 0.
  void broadcast(at::Tensor tensor);
  /// Every rank gets rank 0's `bytes`, of any length; those of the others are dropped.
  std::vector<std::byte> broadcast_bytes(std::vector<std::byte> bytes);
  /// `out` gets this rank's one of `parts`, which rank 0 gives, all of out's shape and dtype; the others give
  /// none.
  void scatter(at::Tensor out, std::vector<at::Tensor> parts);
  void barrier();
  /// The end of the group where all went well: after a barrier of its ranks, or of more, with nothing under
  /// way. NCCL says good-bye here; a group that is only destroyed tears its connections down, as after an
  /// error. What goes wrong in it is a warning, for all is done. Collective; no other function follows.
  void shut_down();
  /// Every rank gets every rank's `text`, in rank order: torch's all_gather_object, whose objects are strings
  /// here. The strings go through the store, so they should be small and few. A rank whose string does not
  /// arrive within the time-out is an Error that names it. Collective.
  std::vector<std::string> all_gather_object(const std::string& text);

 private:
  Group();
  void use(c10::intrusive_ptr<c10d::Backend> backend);

  int rank_ = 0;
  int size_ = 1;
  at::Device device_;
  Rank place_;  ///< In the job, not in this group.
  core::Backend asked_ = core::Backend::kAuto;
  std::chrono::milliseconds timeout_ = kCollectiveTimeout;
  std::vector<int> members_;  ///< Their ranks in the job.
  bool has_average_ = false;
  std::int64_t object_gathers_ = 0;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::Backend> backend_;
};

}  // namespace accel::train
