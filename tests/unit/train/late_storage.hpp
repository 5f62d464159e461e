#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "train/device/storage_device.hpp"

namespace accel::train::testing {

/// An offloaded storage on the CPU whose copies happen as late as a GPU's may: the target holds garbage until
/// wait_on_stream() or synchronize(), and the host sees what was stored only after synchronize(). A source
/// that the host changes before synchronize() is an error.
class LateStorage final : public StorageDevice {
 public:
  LateStorage() : StorageDevice(at::kCPU) {}

  [[nodiscard]] bool is_offloaded() const override { return true; }
  at::Tensor empty(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) override {
    at::Tensor tensor = at::empty_strided(sizes, strides, at::TensorOptions().dtype(dtype));
    spoil(tensor);
    return tensor;
  }
  using StorageDevice::fetch;
  std::unique_ptr<Copy> fetch(const at::Tensor& to, const at::Tensor& from,
                              const Conversion& convert) override {
    ++fetched;
    return start({to, from, {}, /*to_host=*/false, convert});
  }
  std::unique_ptr<Copy> store(const at::Tensor& to, const at::Tensor& from) override {
    ++stored;
    return start({to, from, {}, /*to_host=*/true, {}});
  }
  void synchronize() override {
    while (!under_way_.empty()) finish(under_way_.front());
  }

  int fetched = 0;
  int stored = 0;
  int overlapped = 0;  ///< Fetches that were needed while a later fetch was in progress.

 private:
  struct State {
    at::Tensor to;
    at::Tensor from;
    at::Tensor values;  ///< The source's values, once the device has passed the copy.
    bool to_host = false;
    Conversion convert;
  };
  using Pending = std::shared_ptr<State>;

  class LateCopy final : public Copy {
   public:
    LateCopy(LateStorage& storage, Pending state) : storage_(storage), state_(std::move(state)) {}
    void wait_on_stream() override { storage_.pass(state_); }
    void synchronize() override { storage_.finish(state_); }
    void then(const std::function<void()>& work) override {
      storage_.pass(state_);
      work();
    }

   private:
    LateStorage& storage_;
    Pending state_;
  };

  static void spoil(at::Tensor tensor) {
    if (tensor.is_floating_point()) {
      tensor.fill_(std::numeric_limits<double>::quiet_NaN());
    } else {
      tensor.fill_(tensor.scalar_type() == at::kBool ? 1 : 77);
    }
  }

  std::unique_ptr<Copy> start(State state) {
    const at::NoGradGuard no_grad;
    spoil(state.to);
    under_way_.push_back(std::make_shared<State>(std::move(state)));
    return std::make_unique<LateCopy>(*this, under_way_.back());
  }

  /// Lets the device pass the copy.
  void pass(const Pending& state) {
    const at::NoGradGuard no_grad;
    if (state->values.defined()) return;
    state->values = state->from.clone();
    if (state->to_host) return state->from.reset();  // Its memory may be used for something else.
    for (const Pending& other : under_way_) {
      // For the device the stored values are there already.
      if (other->to_host && other->values.defined() && other->to.is_same(state->from))
        state->values = other->values.clone();
    }
    state->convert ? state->convert(state->to, state->values)
                   : static_cast<void>(state->to.copy_(state->values));
    state->to.reset();
    const auto is_later = [](const Pending& other) { return !other->to_host && !other->values.defined(); };
    overlapped += std::any_of(under_way_.begin(), under_way_.end(), is_later) ? 1 : 0;
  }

  /// Tells the host that the copy is done, and with it the earlier copies in that direction.
  void finish(const Pending last) {
    const at::NoGradGuard no_grad;
    if (std::find(under_way_.begin(), under_way_.end(), last) == under_way_.end()) return;
    for (auto state = under_way_.begin(); state != under_way_.end();) {
      if ((*state)->to_host != last->to_host) {
        ++state;
        continue;
      }
      const Pending done = *state;
      state = under_way_.erase(state);
      pass(done);
      if (done->to_host) {
        done->to.copy_(done->values);
      } else if (!at::equal(done->from.nan_to_num(), done->values.nan_to_num())) {
        throw std::logic_error("what the device was still to read has changed");
      }
      if (done == last) return;
    }
  }

  std::vector<Pending> under_way_;
};

}  // namespace accel::train::testing
