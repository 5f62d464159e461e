#include "train/device/storage_device.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "train/device/host_storage.hpp"

namespace accel::train {
namespace {

class SameDevice final : public StorageDevice {
 public:
  explicit SameDevice(at::Device compute) : StorageDevice(compute) {}

  [[nodiscard]] bool is_offloaded() const override { return false; }
  at::Tensor empty(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) override {
    return at::empty_strided(sizes, strides, at::TensorOptions().dtype(dtype).device(compute()));
  }
  std::unique_ptr<Copy> fetch(const at::Tensor& to, const at::Tensor& from,
                              const Conversion& convert) override {
    if (!convert) return copy(to, from);
    convert(to, from);
    return std::make_unique<Copy>();
  }
  std::unique_ptr<Copy> store(const at::Tensor& to, const at::Tensor& from) override {
    return copy(to, from);
  }
  void synchronize() override {}

 private:
  static std::unique_ptr<Copy> copy(at::Tensor to, const at::Tensor& from) {
    const at::NoGradGuard no_grad;
    to.copy_(from);
    return std::make_unique<Copy>();
  }
};

}  // namespace

std::shared_ptr<StorageDevice> StorageDevice::beside(at::Device compute) {
  return std::make_shared<SameDevice>(compute);
}

std::shared_ptr<StorageDevice> StorageDevice::on_host(at::Device compute) {
  if (compute.is_cpu()) return beside(compute);
  return std::make_shared<HostStorage>(compute);
}

}  // namespace accel::train
