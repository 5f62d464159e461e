#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "train/c10d/fake_backend.hpp"
#include "train/c10d/mesh_groups.hpp"

namespace accel::train {

/// A fake whose other ranks have zeros in an all-reduce. Counts the bytes that this rank would send in a
/// ring. sent_bytes_test.cpp compares it with real rings.
class LonelyBackend : public FakeBackend {
 public:
  using FakeBackend::FakeBackend;

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& out, at::Tensor& in,
                                                 const c10d::AllgatherOptions& options) override {
    gathered += others() * in.nbytes();
    return FakeBackend::_allgather_base(out, in, options);
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                                                      const c10d::ReduceScatterOptions& options) override {
    reduced += others() * out.nbytes();
    return FakeBackend::_reduce_scatter_base(out, in, options);
  }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& /*options*/) override {
    averaged += 2 * others() * tensors.front().nbytes() / static_cast<std::size_t>(getSize());
    return {};
  }

  std::size_t gathered = 0;
  std::size_t reduced = 0;
  std::size_t averaged = 0;

 private:
  [[nodiscard]] std::size_t others() const { return static_cast<std::size_t>(getSize() - 1); }
};

/// Returns the last of `world` ranks, over all of which a model is sharded once.
inline MeshGroups lonely_groups(Group& world) {
  auto alone = std::make_unique<Group>(Group::over(c10::make_intrusive<LonelyBackend>(0, 1), at::kCPU));
  return {world, {1, world.size()}, nullptr, std::move(alone), nullptr};
}

}  // namespace accel::train
