#include "ckpt/torch_tensor.hpp"

#include <fmt/format.h>

#include "base/checked.hpp"
#include "base/error.hpp"

namespace accel::ckpt {
namespace {

using pickle::Global;
using pickle::ObjectParts;
using pickle::Tuple;
using pickle::Value;
using pickle::Values;

[[noreturn]] void reject(std::string_view what, const Value& found) {
  throw Error(ErrorKind::kCorrupt, fmt::format("a tensor whose {} is {}", what, pickle::describe(found)));
}

DType dtype_of(const Value& value) {
  const auto* name = value.get<Global>();
  const auto dtype = name != nullptr && name->module() == "torch" ? dtype_of_torch_name(name->name())
                                                                  : std::optional<DType>();
  if (!dtype) reject("dtype", value);
  return *dtype;
}

std::int64_t int_of(const Value& value, std::string_view what) {
  const auto* number = value.get<std::int64_t>();
  if (number == nullptr || *number < 0) reject(what, value);
  return *number;
}

// ('storage', torch.FloatStorage, '0', 'cpu', numel); the numel of an UntypedStorage is in bytes.
void read_storage(const Value& value, bool has_dtype, TorchTensor& tensor) {
  const auto* reference = value.get<pickle::Persistent>();
  const auto* id = reference != nullptr ? reference->id.at(0).get<Tuple>() : nullptr;
  if (id == nullptr || id->items.size() < 5) reject("storage", value);
  const auto* type = id->items[1].get<Global>();
  const auto* key = id->items[2].get<std::string>();
  if (type == nullptr || key == nullptr) reject("storage", id->items[1]);
  tensor.storage_key = *key;
  const auto numel = static_cast<std::uint64_t>(int_of(id->items[4], "storage size"));
  if (type->qualified() == "torch.storage.UntypedStorage" || type->qualified() == "torch.UntypedStorage") {
    if (!has_dtype) reject("storage has no dtype", value);
    tensor.storage_bytes = numel;
    return;
  }
  const std::optional<DType> dtype = dtype_of_torch_storage(type->name());
  if (!dtype || !type->module().starts_with("torch")) reject("storage type", id->items[1]);
  if (!has_dtype) tensor.dtype = *dtype;
  tensor.storage_bytes = checked_mul(numel, item_bytes(*dtype));
}

void check_bounds(const TorchTensor& tensor) {
  if (tensor.strides.size() != tensor.shape.size()) {
    throw Error(ErrorKind::kCorrupt, fmt::format("a tensor of shape {} with strides {}",
                                                 to_string(tensor.shape), to_string(tensor.strides)));
  }
  if (checked_numel(tensor.shape) == 0) return;
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

std::optional<TorchTensor> torch_tensor_of(const Value& value) {
  if (const ObjectParts* parameter = pickle::object_of(value, "torch._utils", "_rebuild_parameter")) {
    return parameter->args.empty() ? std::nullopt : torch_tensor_of(parameter->args[0]);
  }
  const ObjectParts* v2 = pickle::object_of(value, "torch._utils", "_rebuild_tensor_v2");
  const ObjectParts* v3 = pickle::object_of(value, "torch._utils", "_rebuild_tensor_v3");
  const ObjectParts* parts = v2 != nullptr ? v2 : v3;
  if (parts == nullptr) return std::nullopt;
  // (storage, offset, size, stride, requires_grad, hooks[, dtype in v3][, metadata])
  const Values& args = parts->args;
  if (args.size() < (v3 != nullptr ? 7U : 6U)) reject("description", value);

  TorchTensor tensor;
  if (v3 != nullptr) tensor.dtype = dtype_of(args[6]);
  read_storage(args[0], v3 != nullptr, tensor);
  tensor.storage_offset = int_of(args[1], "storage offset");
  tensor.shape = dims_of(args[2]);
  tensor.strides = dims_of(args[3]);
  check_bounds(tensor);
  return tensor;
}

Value pickle_of_tensor(DType dtype, const Dims& shape, std::string_view storage_key) {
  const DTypeInfo& info = info_of(dtype);
  const bool untyped = info.torch_storage.empty();
  const std::int64_t numel = checked_numel(shape);
  const auto tuple_of = [](const Dims& dims) {
    Tuple tuple;
    for (const std::int64_t dim : dims) tuple.items.emplace_back(dim);
    return tuple;
  };
  Tuple id{{Value("storage"),
            untyped ? Value(Global("torch.storage", "UntypedStorage"))
                    : Value(Global("torch", info.torch_storage)),
            Value(storage_key), Value("cpu"),
            Value(untyped ? checked_mul(numel, static_cast<std::int64_t>(info.item_bytes)) : numel)}};
  Values args{Value(pickle::Persistent{{Value(std::move(id))}}),
              Value(0),
              Value(tuple_of(shape)),
              Value(tuple_of(row_major_strides(shape))),
              Value(false),
              pickle::reduce(Global("collections", "OrderedDict"), {})};
  if (untyped) args.emplace_back(Global("torch", info.torch_name));
  return pickle::reduce(Global("torch._utils", untyped ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2"),
                        std::move(args));
}

}  // namespace accel::ckpt
