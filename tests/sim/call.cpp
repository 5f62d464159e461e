// A call of an operator on the simulated device: the kernel of the CPU, on the tensors' memory.

#include "call.hpp"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cost.hpp"
#include "device.hpp"

namespace accel::sim {
namespace {

using torch::jit::Stack;

/// Returns the first tensor of the device among the arguments of a call, or an undefined one.
at::Tensor first_sim_tensor(const Stack& stack, std::size_t first) {
  at::Tensor found;
  const auto look = [&](const at::Tensor& tensor) {
    if (!found.defined() && tensor.defined() && tensor.device().type() == kSim) found = tensor;
  };
  for (std::size_t i = first; i < stack.size(); ++i) {
    if (stack[i].isTensor()) look(stack[i].toTensor());
    if (!stack[i].isTensorList()) continue;
    for (const at::Tensor& tensor : stack[i].toTensorVector()) look(tensor);
  }
  return found;
}

bool is_sim(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == kSim; }

/// The sizes of their results depend on values, so a device makes the host wait.
bool reads_values(const c10::OperatorHandle& op, const Stack& stack, std::size_t first) {
  static const std::set<std::string_view> names = {"aten::nonzero",
                                                   "aten::masked_select",
                                                   "aten::_unique2",
                                                   "aten::unique_dim",
                                                   "aten::unique_consecutive",
                                                   "aten::equal",
                                                   "aten::bincount",
                                                   "aten::histc"};
  const std::string& name = op.schema().name();
  if (names.contains(name)) return true;
  if (!name.starts_with("aten::index") && name != "aten::_index_put_impl_") return false;
  // Indices that are masks are turned into numbers first.
  for (std::size_t i = first; i < stack.size(); ++i) {
    if (!stack[i].isOptionalTensorList()) continue;
    for (const std::optional<at::Tensor>& index : stack[i].toOptionalTensorVector()) {
      if (index && index->defined() &&
          (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte))
        return true;
    }
  }
  return false;
}

/// Replaces the arguments of a call, tensors without memory, by its results, without memory as well.
void compute_shapes(const c10::OperatorHandle& op, Stack* stack, std::size_t first) {
  const std::string& name = op.schema().name();
  const auto tensor = [&](std::size_t i) { return (*stack)[first + i].toTensor(); };
  std::vector<at::Tensor> results;
  // Kernels without a form for tensors that have no memory.
  if (name == "aten::_scaled_dot_product_flash_attention_for_cpu") {
    const at::Tensor query = tensor(0);
    results = {at::empty_like(query),
               query.new_empty({query.size(0), query.size(2), query.size(1)}, at::kFloat)};
  } else if (name == "aten::_scaled_dot_product_flash_attention_for_cpu_backward") {
    results = {at::empty_like(tensor(1)), at::empty_like(tensor(2)), at::empty_like(tensor(3))};
  } else if (name == "aten::embedding_dense_backward") {
    const at::Tensor gradient = tensor(0);
    results = {gradient.new_empty({(*stack)[first + 2].toInt(), gradient.size(-1)})};
  } else if (name == "aten::_scaled_mm") {
    const auto dtype = (*stack)[first + 6].toOptional<at::ScalarType>();
    results = {tensor(0).new_empty({tensor(0).size(0), tensor(1).size(1)}, dtype.value_or(at::kBFloat16))};
  } else if (name == "aten::abs") {
    results = {at::empty_like(tensor(0))};
  } else if (name == "aten::max" && stack->size() - first == 1) {
    results = {tensor(0).new_empty({})};
  } else if (name == "aten::index_select") {
    std::vector<std::int64_t> sizes = tensor(0).sizes().vec();
    sizes.at(static_cast<std::size_t>((*stack)[first + 1].toInt())) = tensor(2).numel();
    results = {tensor(0).new_empty(sizes)};
  } else {
    TORCH_CHECK(op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta), name, " cannot be left out");
    return op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
  }
  stack->erase(stack->begin() + static_cast<std::ptrdiff_t>(first), stack->end());
  for (const at::Tensor& result : results) stack->emplace_back(result);
}

/// Replaces the tensors of a call by tensors of the CPU on the same memory, and the results by tensors of the
/// device.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack* stack)
      : op_(op),
        stack_(*stack),
        first_(stack->size() - op.schema().arguments().size()),
        device_(Device::instance()),
        stream_(device_.current_stream()),
        work_(device_, stream_, op.schema().name()) {}

  void run() {
    const bool synchronizes = reads_values(op_, stack_, first_);
    take_arguments();
    const double flops = flops_of(op_.schema().name(), arguments_);
    const at::ScalarType dtype = arguments_.empty() ? at::kFloat : arguments_.front().scalar_type();
    if (device_.leaves_out(work_.bytes())) {
      leave_out();
    } else {
      call_cpu();
      give_results();
    }
    work_.end(seconds_of(device_.timeline().speeds(), flops, dtype, work_.bytes()));
    if (synchronizes) device_.synchronize_stream(stream_, op_.schema().name());
  }

 private:
  struct Pair {
    at::Tensor original;
    at::Tensor alias;
  };

  at::Tensor alias_of(const at::Tensor& tensor, bool writes) {
    if (!is_sim(tensor)) {
      TORCH_CHECK(!tensor.defined() || tensor.dim() == 0 || allows_cpu_tensors(), op_.schema().name(),
                  ": a tensor is on the CPU and another on the simulated device");
      return tensor;
    }
    TORCH_CHECK(tensor.device().index() == current_device(), op_.schema().name(), ": a tensor is on ",
                tensor.device(), " and another on device ", static_cast<int>(current_device()));
    // The same tensor may be an argument twice, such as self and out.
    work_.access(tensor, writes);
    arguments_.push_back(tensor);
    for (const Pair& pair : sim_) {
      if (pair.original.is_same(tensor)) return pair.alias;
    }
    sim_.push_back({tensor, device_.on_cpu(tensor)});
    return sim_.back().alias;
  }

  /// CUDA's indexing takes indices on the CPU.
  [[nodiscard]] bool allows_cpu_tensors() const {
    return op_.schema().name().starts_with("aten::index") || op_.schema().name() == "aten::_index_put_impl_";
  }

  void take_arguments() {
    const auto& arguments = op_.schema().arguments();
    bool has_generator = false;
    // Reads come first: a write that follows them is by the same work.
    for (const bool writes : {false, true}) {
      for (std::size_t i = 0; i < arguments.size(); ++i) {
        const auto* const alias = arguments[i].alias_info();
        if ((alias != nullptr && alias->isWrite()) != writes) continue;
        c10::IValue& value = stack_[first_ + i];
        if (value.isTensor()) {
          value = alias_of(value.toTensor(), writes);
        } else if (value.isTensorList()) {
          c10::List<at::Tensor> list;
          for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(alias_of(tensor, writes));
          value = list;
        } else if (value.isOptionalTensorList()) {
          c10::List<std::optional<at::Tensor>> list;
          for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
            list.push_back(tensor ? std::optional(alias_of(*tensor, writes)) : std::nullopt);
          value = list;
        } else if (value.isDevice()) {
          if (value.toDevice().type() == kSim) value = c10::Device(at::kCPU);
        } else if (is_generator(*arguments[i].type())) {
          has_generator = true;
          value = inner_generator(value.toOptional<at::Generator>());
        }
      }
    }
    draws_ = op_.hasTag(at::Tag::nondeterministic_seeded) && !has_generator;
  }

  static bool is_generator(const c10::Type& type) {
    return type.str().find("Generator") != std::string::npos;
  }

  void call_cpu() {
    // Devices that libtorch does not know have operators of their own for convolutions.
    if (op_.schema().name() == "aten::convolution_overrideable") return call("aten::convolution");
    if (op_.schema().name() == "aten::convolution_backward_overrideable") {
      const std::int64_t channels = stack_[first_].toTensor().size(1);
      stack_.insert(stack_.begin() + static_cast<std::ptrdiff_t>(first_) + 3,
                    std::vector<std::int64_t>{channels});
      return call("aten::convolution_backward");
    }
    if (!draws_) return op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
    // The kernel draws from the CPU's own generator, which gets the state of the device's for that time.
    at::Generator cpu = at::globalContext().defaultGenerator(at::Device(at::kCPU));
    at::Generator ours = inner_generator(std::nullopt);
    const at::Tensor kept = cpu.get_state();
    cpu.set_state(ours.get_state());
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
    ours.set_state(cpu.get_state());
    cpu.set_state(kept);
  }

  void call(const char* name) { c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(&stack_); }

  /// Gives results of the right sizes, without their values.
  void leave_out() {
    const auto& arguments = op_.schema().arguments();
    std::vector<c10::IValue> written;
    bool grows = false;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      c10::IValue& value = stack_[first_ + i];
      const bool is_written = arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite();
      if (value.isTensor()) {
        const at::Tensor tensor = value.toTensor();
        for (const Pair& pair : sim_) {
          if (!tensor.is_same(pair.alias)) continue;
          value = is_written ? pair.original : shape_of(pair.original);
          // Many operators call their out form with an empty tensor.
          grows = grows || (arguments[i].is_out() && pair.original.numel() == 0);
        }
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> shapes;
        for (const at::Tensor& tensor : value.toTensorVector()) shapes.push_back(shape_of(tensor));
        value = shapes;
      }
      if (is_written) written.push_back(value);
    }
    const std::size_t results = op_.schema().returns().size();
    if (grows) grow_outputs();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const c10::IValue& value = stack_[first_ + i];
      if (arguments[i].is_out() && value.isTensor()) make_zero_if_small(value.toTensor());
    }
    if (!written.empty() || results == 0) {
      stack_.erase(stack_.begin() + static_cast<std::ptrdiff_t>(first_), stack_.end());
      stack_.insert(stack_.end(), written.begin(), written.begin() + static_cast<std::ptrdiff_t>(results));
      return;
    }
    compute_shapes(op_, &stack_, first_);
    for (std::size_t i = stack_.size() - results; i < stack_.size(); ++i) {
      if (stack_[i].isTensor() && stack_[i].toTensor().defined()) stack_[i] = unwritten(stack_[i].toTensor());
      if (!stack_[i].isTensorList()) continue;
      c10::List<at::Tensor> tensors;
      for (const at::Tensor& shape : stack_[i].toTensorVector()) tensors.push_back(unwritten(shape));
      stack_[i] = tensors;
    }
  }

  /// Gives the outputs of an out form the sizes of its results.
  void grow_outputs() {
    const auto& arguments = op_.schema().arguments();
    Stack shapes(stack_.begin() + static_cast<std::ptrdiff_t>(first_), stack_.end());
    std::vector<at::Tensor> outputs;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (!arguments[i].is_out()) continue;
      outputs.push_back(shapes[i].toTensor());
      shapes[i] = shape_of(outputs.back());
    }
    compute_shapes(op_, &shapes, 0);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      outputs[i].resize_(shapes.at(i).toTensor().sizes());
      work_.access(outputs[i], /*writes=*/true);
    }
  }

  static at::Tensor shape_of(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    return at::empty_strided(tensor.sizes(), tensor.strides(), at::device(at::kMeta).dtype(tensor.dtype()));
  }

  at::Tensor unwritten(const at::Tensor& shape) {
    at::Tensor tensor = at::empty_strided(shape.sizes(), shape.strides(),
                                          shape.options().device(at::Device(kSim, current_device())));
    make_zero_if_small(tensor);
    work_.access(tensor, /*writes=*/true);
    return tensor;
  }

  /// A small result, such as a loss, is 0: its memory may have numbers that no run can go on with.
  void make_zero_if_small(const at::Tensor& tensor) {
    if (!device_.leaves_out(tensor.nbytes()) && tensor.nbytes() > 0 && tensor.is_non_overlapping_and_dense())
      std::memset(device_.bytes_of(tensor.mutable_data_ptr()), 0, tensor.nbytes());
  }

  void give_results() {
    const std::size_t results = op_.schema().returns().size();
    for (std::size_t i = stack_.size() - results; i < stack_.size(); ++i) {
      c10::IValue& value = stack_[i];
      if (value.isTensor()) {
        value = given(value.toTensor());
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(given(tensor));
        value = list;
      }
    }
    // An output that was written without being returned may have grown as well.
    for (const Pair& pair : sim_) follow(pair);
  }

  at::Tensor given(const at::Tensor& result) {
    if (!result.defined() || !result.device().is_cpu()) return result;
    for (const Pair& pair : sim_) {
      if (result.is_same(pair.alias)) return pair.original;
    }
    for (const Pair& pair : sim_) {
      if (!pair.alias.has_storage() || result.storage().data() == nullptr ||
          result.storage().data() != pair.alias.storage().data())
        continue;
      return at::native::as_strided_tensorimpl(pair.original, result.sizes(), result.strides(),
                                               result.storage_offset());
    }
    return moved(result);
  }

  at::Tensor moved(const at::Tensor& result) {
    const std::size_t bytes = result.storage().nbytes();
    c10::DataPtr data = device_allocator()->allocate(bytes);
    if (bytes > 0) std::memcpy(device_.bytes_of(data.get()), result.storage().data(), bytes);
    c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(data), device_allocator(), true);
    at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), result.dtype());
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides(),
                                                        result.storage_offset());
    work_.access(tensor, /*writes=*/true);
    return tensor;
  }

  /// Gives an argument the sizes that its alias has got, and the memory.
  void follow(const Pair& pair) {
    if (!pair.alias.has_storage()) return;
    c10::TensorImpl* const original = pair.original.unsafeGetTensorImpl();
    const void* const bytes = pair.original.storage().data() == nullptr
                                  ? nullptr
                                  : device_.bytes_of(pair.original.storage().data());
    const bool grew = pair.alias.storage().data() != bytes;
    if (grew) {
      const at::Tensor other = moved(pair.alias);
      original->set_storage_keep_dtype(other.storage());
    }
    if (grew || pair.alias.sizes() != pair.original.sizes() ||
        pair.alias.strides() != pair.original.strides())
      original->set_sizes_and_strides(pair.alias.sizes(), pair.alias.strides(), pair.alias.storage_offset());
  }

  const c10::OperatorHandle& op_;
  Stack& stack_;
  std::size_t first_;
  Device& device_;
  StreamNumber stream_;
  Device::Work work_;
  std::vector<at::Tensor> arguments_;  ///< The tensors of the device among the arguments, in their order.
  std::vector<Pair> sim_;              ///< Each of them once.
  bool draws_ = false;
};

}  // namespace

void run_on_memory(const c10::OperatorHandle& op, Stack* stack) {
  const at::Tensor tensor = first_sim_tensor(*stack, stack->size() - op.schema().arguments().size());
  if (!tensor.defined()) return Call(op, stack).run();
  const OnDeviceOf guard(tensor);
  Call(op, stack).run();
}

}  // namespace accel::sim
