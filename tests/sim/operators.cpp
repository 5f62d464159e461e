// The operators of the simulated device: the kernels of the CPU, on the tensors' memory.
//
// An operator without a kernel for a device takes libtorch's composite form, whose last bits may differ from
// those of the CPU's kernel. So every operator that has a kernel for the CPU gets one here, which calls it.

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <ATen/native/transformers/attention.h>
#include <torch/library.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "call.hpp"
#include "cost.hpp"
#include "device.hpp"

namespace accel::sim {
namespace {

using torch::jit::Stack;

/// Runs a kernel of the CPU that changes sizes and strides alone on the device's tensors themselves.
void on_metadata(const c10::OperatorHandle& op, Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

at::Tensor empty_memory_format(c10::SymIntArrayRef sizes, std::optional<at::ScalarType> dtype,
                               std::optional<at::Layout> /*layout*/, std::optional<at::Device> device,
                               std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pinned.value_or(false), "only tensors of the CPU can be pinned");
  const c10::DeviceIndex before = exchange_device(device ? device->index() : -1);
  at::Tensor tensor = at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(sizes), device_allocator(),
                                                c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                c10::dtype_or_default(dtype), format);
  exchange_device(before);
  return tensor;
}

at::Tensor empty_strided(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
                         std::optional<at::Device> device, std::optional<bool> pinned) {
  TORCH_CHECK(!pinned.value_or(false), "only tensors of the CPU can be pinned");
  const c10::DeviceIndex before = exchange_device(device ? device->index() : -1);
  at::Tensor tensor = at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides), device_allocator(),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
  exchange_device(before);
  return tensor;
}

// As with CUDA: the host waits unless the copy is non-blocking and to or from pinned memory. Pageable memory
// is staged when it is the source, and makes the host wait when it is the target.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (from.numel() == 0) return to;
  const OnDeviceOf guard(from.is_cpu() ? to : from);
  // A thread beside the training comes late, so that who does not wait for it is found.
  if (to.is_cpu() && !is_training_thread()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  Device& device = Device::instance();
  const at::NoGradGuard no_grad;
  const auto& host = from.is_cpu() ? from : to;
  const bool between = from.is_cpu() != to.is_cpu();
  const bool is_pinned = between && device.is_pinned(host.storage().data());
  at::Tensor source = from;
  if (between && from.scalar_type() != to.scalar_type()) {
    // The values are converted on the device.
    if (to.is_cpu()) {
      source = from.to(to.scalar_type());
    } else {
      const at::Tensor same =
          at::empty_strided(from.sizes(), from.strides(), to.options().dtype(from.dtype()));
      copy_from(from, same, non_blocking);
      const at::Tensor target = to;
      target.copy_(same);
      return to;
    }
  }
  const StreamNumber stream = device.current_stream();
  Device::Work work(device, stream, between ? (from.is_cpu() ? "copy to device" : "copy to host") : "copy");
  work.access(source, /*writes=*/false);
  work.access(to, /*writes=*/true);
  const auto alias = [&](const at::Tensor& tensor) {
    return tensor.is_cpu() && !device.is_pinned(tensor.storage().data()) ? tensor : device.on_cpu(tensor);
  };
  const std::size_t bytes = to.numel() * to.element_size();
  if (!device.leaves_out(bytes)) alias(to).copy_(alias(source));
  if (is_pinned) {
    const auto* const first = static_cast<const std::byte*>(host.const_data_ptr());
    const std::size_t extent = host.is_non_overlapping_and_dense() ? bytes : host.storage().nbytes();
    work.copies_pinned(host.is_non_overlapping_and_dense() ? first : host.storage().data(), extent,
                       to.is_cpu());
  }
  const Speeds& speeds = device.timeline().speeds();
  work.end(between ? static_cast<double>(bytes) / speeds.host_bytes
                   : seconds_of(speeds, 0, at::kFloat, work.bytes()));
  const bool waits = between && (!non_blocking || (to.is_cpu() && !is_pinned));
  if (waits) device.synchronize_stream(stream, non_blocking ? "copy to pageable memory" : "blocking copy");
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, /*non_blocking=*/false);
}

at::Scalar local_scalar_dense(const at::Tensor& tensor) {
  const OnDeviceOf guard(tensor);
  Device& device = Device::instance();
  const StreamNumber stream = device.current_stream();
  Device::Work work(device, stream, "item");
  work.access(tensor, /*writes=*/false);
  const at::Scalar value = device.on_cpu(tensor).item();
  work.end(device.timeline().speeds().kernel_s);
  device.synchronize_stream(stream, "item");
  return value;
}

const at::Tensor& resize(const at::Tensor& tensor, c10::SymIntArrayRef sizes,
                         std::optional<at::MemoryFormat> /*format*/) {
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(C10_AS_INTARRAYREF_SLOW(sizes));
  const std::size_t bytes = (impl->numel() + impl->storage_offset()) * impl->itemsize();
  if (impl->unsafe_storage().nbytes() >= bytes) return tensor;
  TORCH_CHECK(impl->unsafe_storage().resizable(), "Trying to resize storage that is not resizable");
  at::Tensor grown = at::empty({static_cast<std::int64_t>(bytes)}, tensor.options().dtype(at::kByte));
  const std::size_t old = impl->unsafe_storage().nbytes();
  if (old > 0) {
    Device& device = Device::instance();
    std::memcpy(device.bytes_of(grown.storage().mutable_data()),
                device.bytes_of(impl->unsafe_storage().data()), old);
  }
  impl->unsafe_storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      std::move(grown.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()));
  impl->unsafe_storage().set_nbytes(bytes);
  return tensor;
}

void record_stream(at::Tensor& tensor, at::Stream stream) {
  Device::instance().record_stream(tensor.storage().mutable_data(), Device::number_of(stream));
}

}  // namespace

std::int64_t choose_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                              const std::optional<at::Tensor>& mask, double dropout, bool is_causal,
                              std::optional<double> scale, bool gqa) {
  const auto alias = [](const at::Tensor& tensor) {
    return Device::instance().on_cpu(tensor).set_requires_grad(tensor.requires_grad());
  };
  return at::_fused_sdp_choice(alias(query), alias(key), alias(value),
                               mask ? std::optional(alias(*mask)) : std::nullopt, dropout, is_causal, scale,
                               gqa);
}

namespace {

/// Whether the kernel of the CPU returns a tensor on the memory of an argument, or changes no memory at all.
bool is_metadata(const c10::FunctionSchema& schema) {
  if (schema.name() == "aten::set_" || schema.name() == "aten::is_set_to") return true;
  return std::any_of(schema.returns().begin(), schema.returns().end(), [](const c10::Argument& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

const bool operators_registered = [] {
  static torch::Library aten(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  aten.impl("empty.memory_format", empty_memory_format);
  aten.impl("empty_strided", empty_strided);
  aten.impl("_copy_from", copy_from);
  aten.impl("_copy_from_and_resize", copy_from_and_resize);
  aten.impl("_local_scalar_dense", local_scalar_dense);
  aten.impl("resize_", resize);
  aten.impl("record_stream", record_stream);
  const std::set<std::string> own = {"empty.memory_format", "empty_strided", "_local_scalar_dense",
                                     "resize_"};
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const std::string full = c10::toString(name).substr(6);
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || !op->hasSchema() || own.contains(full) ||
        op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1))
      continue;
    // One operator on a list of tensors is one kernel on CUDA, and a loop in its composite form. An
    // overrideable one is there for devices alone.
    const bool is_ours = full.starts_with("_foreach_") || full.starts_with("_fused_a") ||
                         full.starts_with("_fused_sgd") || full.ends_with("_overrideable");
    if (!is_ours && !op->hasKernelForDispatchKey(c10::DispatchKey::CPU)) continue;
    aten.impl(full.c_str(), is_metadata(op->schema())
                                ? torch::CppFunction::makeFromBoxedFunction<&on_metadata>()
                                : torch::CppFunction::makeFromBoxedFunction<&run_on_memory>());
  }
  static torch::Library others(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  others.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_memory>());
  return true;
}();

}  // namespace

}  // namespace accel::sim

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &accel::sim::choose_attention)
}  // namespace at::native
