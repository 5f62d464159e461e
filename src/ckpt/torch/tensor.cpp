#include "ckpt/torch/tensor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"

namespace accel::ckpt {
namespace {

using pickle::Global;
using pickle::ObjectParts;
using pickle::Tuple;
using pickle::Value;
using pickle::Values;

constexpr std::string_view kOnMeta = "a tensor of the meta device, without data";

[[noreturn]] void reject(std::string_view what, const Value& found) {
  throw Error(ErrorKind::kCorrupt, fmt::format("a tensor whose {} is {}", what, pickle::describe(found)));
}

// Sets the dtype. One that this program does not know, such as that of a later torch, is an obstacle.
void set_dtype(const Value& value, TorchTensor& tensor) {
  const auto* name = value.get<Global>();
  if (name == nullptr || name->module() != "torch") reject("dtype", value);
  tensor.dtype = dtype_of_torch_name(name->name()).value_or(DType::kUnknown);
  if (tensor.dtype == DType::kUnknown)
    tensor.obstacle = fmt::format("a tensor of the unknown dtype {}", name->qualified());
}

std::int64_t int_of(const Value& value, std::string_view what) {
  const auto* number = value.get<std::int64_t>();
  if (number == nullptr || *number < 0) reject(what, value);
  return *number;
}

// The dtype of the integers in a storage of quantized elements.
std::optional<DType> quantized_dtype_of(std::string_view storage) {
  if (storage == "QInt8Storage") return DType::kInt8;
  if (storage == "QInt32Storage") return DType::kInt32;
  if (storage == "QUInt8Storage" || storage == "QUInt4x2Storage" || storage == "QUInt2x4Storage")
    return DType::kUInt8;
  return std::nullopt;
}

void read_storage(const Value& value, bool has_dtype, TorchTensor& tensor) {
  const std::optional<TorchStorage> storage = torch_storage_of(value);
  if (!storage) reject("storage", value);
  tensor.storage_key = storage->key;
  tensor.storage_bytes = storage->bytes;
  tensor.on_meta = storage->on_meta;
  if (storage->is_view) tensor.obstacle = "a view of a part of a storage, of torch before 0.4";
  if (storage->item_bytes == 0) tensor.obstacle = fmt::format("a tensor of the unknown {}", storage->type);
  if (has_dtype) return;
  if (!storage->dtype && storage->item_bytes != 0) reject("storage has no dtype", value);
  tensor.dtype = storage->dtype.value_or(DType::kUnknown);
}

// A call that builds a tensor: the function's name, its arguments, and the attributes of a class of its own.
struct Call {
  std::string_view function;
  const Values* args = nullptr;
  const Value* state = nullptr;
};

std::optional<Call> call_of(const Value& value) {
  const auto* object = value.get<pickle::Object>();
  if (object == nullptr) return std::nullopt;
  const auto* function = (*object)->callable.get<Global>();
  if (function == nullptr || !function->module().starts_with("torch.")) return std::nullopt;
  const Values& args = (*object)->args;
  if (function->qualified() == "torch._tensor._rebuild_from_type_v2" ||
      function->qualified() == "torch._tensor._rebuild_from_type") {
    // The arguments are (function, class, arguments, state).
    const auto* inner = args.size() == 4 ? args[0].get<Global>() : nullptr;
    const auto* inner_args = inner != nullptr ? args[2].get<Tuple>() : nullptr;
    if (inner_args == nullptr || inner->module() != "torch._utils") return std::nullopt;
    return Call{inner->name(), &inner_args->items, &args[3]};
  }
  if (function->module() != "torch._utils") return std::nullopt;
  return Call{function->name(), &args};
}

std::optional<TorchTensor> tensor_of(const Call& call, const Value& value);

TorchTensor without_data(std::string_view obstacle, DType dtype, const Value& shape) {
  TorchTensor tensor;
  tensor.obstacle = obstacle;
  tensor.dtype = dtype;
  tensor.shape = dims_of(shape);
  (void)checked_numel(tensor.shape);
  return tensor;
}

TorchTensor without_data(std::string_view obstacle, const Value& dtype, const Value& shape) {
  TorchTensor of_dtype;
  set_dtype(dtype, of_dtype);
  return without_data(of_dtype.obstacle.empty() ? obstacle : of_dtype.obstacle, of_dtype.dtype, shape);
}

// The attributes of torchao's float8 weights. `_tensor` has the values, and the others say how they are used.
constexpr std::array<std::string_view, 4> kFloat8Attributes = {"_dtype", "_linear_mm_config",
                                                               "_precomputed_scale", "_tensor"};

bool is_float8_attribute(const std::pair<Value, Value>& attribute) {
  const auto* name = attribute.first.get<std::string>();
  return name != nullptr && std::ranges::find(kFloat8Attributes, *name) != kFloat8Attributes.end();
}

// Whether `value` is or holds a tensor or a floating-point number, which the values of a wrapper may depend
// on.
bool has_factor(const Value& value) {
  return value.get<double>() != nullptr || value.get<pickle::Persistent>() != nullptr ||
         pickle::any_part(value, has_factor);
}

// The attribute that the values of a wrapper are, if they depend on no other one; else nullptr.
const Value* only_factor_of(const pickle::Pairs& attributes) {
  if (std::ranges::all_of(attributes, is_float8_attribute)) return pickle::find(attributes, "_tensor");
  const Value* only = nullptr;
  for (const auto& [name, item] : attributes) {
    if (!has_factor(item)) continue;
    if (only != nullptr) return nullptr;
    only = &item;
  }
  return only;
}

// The arguments are (class, dtype, size, strides, offset, layout, device, requires_grad). The values of most
// classes depend on several attributes, such as data and a scale, in a way that only the class knows.
TorchTensor wrapped_of(const Values& args, const Value* state, const Value& value) {
  if (args.size() < 3) reject("description", value);
  const auto* type = args[0].get<Global>();
  const std::string name = type != nullptr ? type->qualified() : pickle::describe(args[0]);
  TorchTensor wrapper = without_data(
      name.ends_with(".DTensor") ? "what one rank has of a DTensor (full_tensor() gives the whole one)"
                                 : fmt::format("a tensor of the class {}", name),
      args[1], args[2]);
  const pickle::Pairs* attributes = state != nullptr ? pickle::mapping_of(*state) : nullptr;
  const Value* held = attributes != nullptr ? only_factor_of(*attributes) : nullptr;
  std::optional<TorchTensor> data = held != nullptr ? torch_tensor_of(*held) : std::nullopt;
  const bool is_data =
      data && data->dtype == wrapper.dtype && data->shape == wrapper.shape && data->obstacle.empty();
  return is_data ? *std::move(data) : wrapper;
}

// The arguments are (layout, (indices, values, size[, is_coalesced])); some layouts have two index tensors.
TorchTensor sparse_of(const Values& args, const Value& value) {
  const auto* data = args.size() == 2 ? args[1].get<Tuple>() : nullptr;
  if (data == nullptr || data->items.size() < 3) reject("description", value);
  const bool compressed = data->items.size() == 4 && torch_tensor_of(data->items[2]).has_value();
  const std::optional<TorchTensor> values = torch_tensor_of(data->items[compressed ? 2 : 1]);
  if (!values) reject("values", value);
  return without_data("a sparse tensor", values->dtype, data->items[compressed ? 3 : 2]);
}

// The arguments are (storage, offset, size, stride, requires_grad, hooks[, dtype in v3][, metadata]). torch
// before 0.4 wrote the first four.
TorchTensor dense_of(const Values& args, bool v1, bool v3, const Value& value) {
  if (args.size() < (v3 ? 7U : v1 ? 4U : 6U)) reject("description", value);
  TorchTensor tensor;
  if (v3) set_dtype(args[6], tensor);
  read_storage(args[0], v3, tensor);
  tensor.storage_offset = int_of(args[1], "storage offset");
  tensor.shape = dims_of(args[2]);
  tensor.strides = dims_of(args[3]);
  if (tensor.on_meta) tensor.obstacle = kOnMeta;
  if (v1) return tensor;
  const auto* requires_grad = args[4].get<bool>();
  tensor.requires_grad = requires_grad != nullptr && *requires_grad;
  const std::size_t metadata = v3 ? 7 : 6;
  if (args.size() > metadata) {
    const pickle::Pairs* flags = pickle::mapping_of(args[metadata]);
    if (flags == nullptr && !args[metadata].is_none()) reject("metadata", args[metadata]);
    if (flags != nullptr && !flags->empty()) tensor.obstacle = "a lazily conjugated or negated view";
  }
  return tensor;
}

void check_bounds(const TorchTensor& tensor) {
  if (tensor.strides.size() != tensor.shape.size()) {
    throw Error(ErrorKind::kCorrupt, fmt::format("a tensor of shape {} with strides {}",
                                                 to_string(tensor.shape), to_string(tensor.strides)));
  }
  if (checked_numel(tensor.shape) == 0 || tensor.dtype == DType::kUnknown) return;
  std::int64_t last = tensor.storage_offset;
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    last = checked_add(last, checked_mul(tensor.shape[d] - 1, tensor.strides[d]));
  }
  const auto end = checked_mul<std::uint64_t>(static_cast<std::uint64_t>(checked_add<std::int64_t>(last, 1)),
                                              item_bytes(tensor.dtype));
  if (end > tensor.storage_bytes) {
    throw Error(ErrorKind::kCorrupt, fmt::format("a tensor of shape {} needs {} bytes of storage, but has {}",
                                                 to_string(tensor.shape), end, tensor.storage_bytes));
  }
}

std::optional<TorchTensor> tensor_of(const Call& call, const Value& value) {
  const Values& args = *call.args;
  if (call.function == "_rebuild_parameter" || call.function == "_rebuild_parameter_with_state") {
    return args.empty() ? std::nullopt : torch_tensor_of(args[0]);
  }
  if (call.function == "_rebuild_sparse_tensor") return sparse_of(args, value);
  if (call.function == "_rebuild_meta_tensor_no_storage") {
    if (args.size() < 2) reject("description", value);
    TorchTensor tensor = without_data(kOnMeta, args[0], args[1]);
    tensor.on_meta = true;
    return tensor;
  }
  if (call.function == "_rebuild_wrapper_subclass") return wrapped_of(args, call.state, value);
  if (call.function == "_rebuild_nested_tensor") {
    const std::optional<TorchTensor> buffer = args.empty() ? std::nullopt : torch_tensor_of(args[0]);
    if (!buffer) reject("description", value);
    TorchTensor tensor;
    tensor.dtype = buffer->dtype;
    tensor.shape = buffer->shape;
    tensor.obstacle = "a nested tensor";
    return tensor;
  }
  const bool quantized = call.function == "_rebuild_qtensor";
  const bool v1 = call.function == "_rebuild_tensor";
  const bool v3 = call.function == "_rebuild_tensor_v3";
  if (!quantized && !v1 && !v3 && call.function != "_rebuild_tensor_v2") {
    // torch saves tensors of other devices with this. An error is better than to lose them silently.
    if (!call.function.starts_with("_rebuild_")) return std::nullopt;
    throw Error(ErrorKind::kFailure,
                fmt::format("a tensor saved with torch._utils.{}, which accel does not read", call.function));
  }
  TorchTensor tensor;
  if (quantized) {
    // The arguments are (storage, offset, size, stride, quantizer, requires_grad, hooks).
    if (args.size() < 7) reject("description", value);
    read_storage(args[0], false, tensor);
    return without_data(tensor.obstacle.empty() ? kQuantized : tensor.obstacle, tensor.dtype, args[2]);
  }
  tensor = dense_of(args, v1, v3, value);
  check_bounds(tensor);
  return tensor;
}

}  // namespace

Dims dims_of(const Value& value) {
  const Values* items = pickle::sequence_of(value);
  if (const ObjectParts* size = pickle::object_of(value, "torch", "Size")) {
    items = size->args.empty() ? &size->args : pickle::sequence_of(size->args[0]);
  }
  if (items == nullptr) reject("shape", value);
  Dims dims;
  dims.reserve(items->size());
  for (const Value& item : *items) dims.push_back(int_of(item, "dimension"));
  return dims;
}

// The id is ('storage', torch.FloatStorage, '0', 'cpu', numel[, view]). The numel of an UntypedStorage is in
// bytes.
std::optional<TorchStorage> torch_storage_of(const Value& value) {
  const auto* reference = value.get<pickle::Persistent>();
  const auto* id = reference != nullptr ? reference->id.at(0).get<Tuple>() : nullptr;
  const auto* kind = id != nullptr && !id->items.empty() ? id->items[0].get<std::string>() : nullptr;
  if (kind == nullptr || *kind != "storage" || id->items.size() < 5) return std::nullopt;
  const auto* type = id->items[1].get<Global>();
  const auto* key = id->items[2].get<std::string>();
  if (type == nullptr || key == nullptr) reject("storage", id->items[1]);
  const auto* device = id->items[3].get<std::string>();
  TorchStorage storage{*key, type->qualified(), std::nullopt};
  storage.on_meta = device != nullptr && device->starts_with("meta");
  storage.is_view = id->items.size() > 5 && !id->items[5].is_none();
  const auto numel = static_cast<std::uint64_t>(int_of(id->items[4], "storage size"));
  if (type->qualified() == "torch.storage.UntypedStorage" || type->qualified() == "torch.UntypedStorage") {
    storage.item_bytes = 1;
  } else {
    if (!type->module().starts_with("torch") || !type->name().ends_with("Storage"))
      reject("storage type", id->items[1]);
    storage.dtype = dtype_of_torch_storage(type->name());
    if (!storage.dtype) storage.dtype = quantized_dtype_of(type->name());
    storage.item_bytes = storage.dtype ? item_bytes(*storage.dtype) : 0;
  }
  storage.bytes = checked_mul(numel, storage.item_bytes);
  return storage;
}

std::optional<TorchTensor> torch_tensor_of(const Value& value) {
  const std::optional<Call> call = call_of(value);
  return call ? tensor_of(*call, value) : std::nullopt;
}

Value pickle_of_tensor(DType dtype, const Dims& shape, std::string_view storage_key) {
  TorchTensor tensor;
  tensor.dtype = dtype;
  tensor.shape = shape;
  tensor.strides = row_major_strides(shape);
  tensor.storage_key = storage_key;
  tensor.storage_bytes = static_cast<std::uint64_t>(
      checked_mul(checked_numel(shape), static_cast<std::int64_t>(info_of(dtype).item_bytes)));
  return pickle_of_tensor(tensor);
}

Value pickle_of_tensor(const TorchTensor& tensor) {
  const DTypeInfo& info = info_of(tensor.dtype);
  const bool untyped = info.torch_storage.empty();
  const auto tuple_of = [](const Dims& dims) {
    Tuple tuple;
    for (const std::int64_t dim : dims) tuple.items.emplace_back(dim);
    return tuple;
  };
  // A storage of a type counts its elements.
  const std::uint64_t size = untyped ? tensor.storage_bytes : tensor.storage_bytes / info.item_bytes;
  Tuple id{{Value("storage"),
            untyped ? Value(Global("torch.storage", "UntypedStorage"))
                    : Value(Global("torch", info.torch_storage)),
            Value(tensor.storage_key), Value(tensor.on_meta ? "meta" : "cpu"),
            Value(static_cast<std::int64_t>(size))}};
  Values args{Value(pickle::Persistent{{Value(std::move(id))}}),
              Value(tensor.storage_offset),
              Value(tuple_of(tensor.shape)),
              Value(tuple_of(tensor.strides)),
              Value(tensor.requires_grad),
              pickle::reduce(Global("collections", "OrderedDict"), {})};
  if (untyped) args.emplace_back(Global("torch", info.torch_name));
  return pickle::reduce(Global("torch._utils", untyped ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2"),
                        std::move(args));
}

}  // namespace accel::ckpt
