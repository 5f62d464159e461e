#pragma once

#include <ATen/ATen.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <map>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

namespace accel::train {

/// A rank in a ring of processes, each of which sends to the next one over a socket. It has the textbook's
/// ring all-gather, reduce-scatter and all-reduce, which NCCL uses for large tensors. Counts the bytes that
/// write(2) took. The tensors must fit a socket's buffer, because every rank writes before it reads.
class SocketRing : public c10d::Backend {
 public:
  struct Ends {
    int to_next = -1;
    int from_previous = -1;
  };

  SocketRing(int rank, int size, Ends ends) : Backend(rank, size), ends_(ends) {}
  const std::string getBackendName() const override { return "ring"; }

  /// The sockets of a ring of `members`, by member. All of them are open in every process that is forked
  /// later.
  static std::map<int, Ends> connect(const std::vector<int>& members) {
    std::map<int, Ends> ring;
    for (std::size_t i = 0; i < members.size(); ++i) {
      std::array<int, 2> pair{};
      if (::socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()) != 0) throw std::runtime_error("no socket pair");
      ring[members[i]].to_next = pair[0];
      ring[members[(i + 1) % members.size()]].from_previous = pair[1];
    }
    return ring;
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& out, at::Tensor& in,
                                                 const c10d::AllgatherOptions& /*options*/) override {
    std::vector<at::Tensor> parts = out.chunk(getSize());
    part(parts, getRank()).copy_(in);
    gathered += gather(parts);
    return {};
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& out, at::Tensor& in, const c10d::ReduceScatterOptions& /*options*/) override {
    std::vector<at::Tensor> parts = in.clone().chunk(getSize());
    reduced += reduce(parts);
    out.copy_(part(parts, getRank()));
    return {};
  }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& /*options*/) override {
    at::Tensor flat = tensors.front().reshape({-1});
    const std::int64_t each = (flat.numel() + getSize() - 1) / getSize();
    const at::Tensor padded = at::zeros({each * getSize()}, flat.options());
    padded.narrow(0, 0, flat.numel()).copy_(flat);
    std::vector<at::Tensor> parts = padded.chunk(getSize());
    averaged += reduce(parts);
    averaged += gather(parts);
    flat.copy_(padded.narrow(0, 0, flat.numel()));
    return {};
  }

  std::size_t gathered = 0;
  std::size_t reduced = 0;
  std::size_t averaged = 0;

 private:
  [[nodiscard]] at::Tensor& part(std::vector<at::Tensor>& parts, int number) const {
    return parts[static_cast<std::size_t>((number % getSize() + getSize()) % getSize())];
  }

  /// All-gather: part r is rank r's at first, and every rank has all parts in the end. Returns the bytes
  /// sent.
  std::size_t gather(std::vector<at::Tensor>& parts) const {
    std::size_t sent = 0;
    for (int step = 0; step < getSize() - 1; ++step) {
      sent += send(part(parts, getRank() - step));
      receive(part(parts, getRank() - step - 1));
    }
    return sent;
  }

  /// Reduce-scatter: on rank r, part r is the sum of all ranks' parts r in the end. Returns the bytes sent.
  std::size_t reduce(std::vector<at::Tensor>& parts) const {
    std::size_t sent = 0;
    for (int step = 0; step < getSize() - 1; ++step) {
      sent += send(part(parts, getRank() - step - 1));
      at::Tensor& mine = part(parts, getRank() - step - 2);
      at::Tensor theirs = at::empty_like(mine);
      receive(theirs);
      mine.add_(theirs);
    }
    return sent;
  }

  std::size_t send(const at::Tensor& tensor) const {
    const ssize_t written = ::write(ends_.to_next, tensor.data_ptr(), tensor.nbytes());
    if (written != static_cast<ssize_t>(tensor.nbytes())) throw std::runtime_error("short write");
    return static_cast<std::size_t>(written);
  }

  void receive(const at::Tensor& tensor) const {
    auto* data = static_cast<std::byte*>(tensor.data_ptr());
    for (std::size_t got = 0; got < tensor.nbytes();) {
      const ssize_t count = ::read(ends_.from_previous, data + got, tensor.nbytes() - got);
      if (count <= 0) throw std::runtime_error("the previous rank is gone");
      got += static_cast<std::size_t>(count);
    }
  }

  Ends ends_;
};

}  // namespace accel::train
