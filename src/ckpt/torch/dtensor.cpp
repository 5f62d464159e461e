#include "ckpt/torch/dtensor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"

namespace accel::ckpt {
namespace {

using pickle::Global;
using pickle::Object;
using pickle::ObjectParts;
using pickle::Pairs;
using pickle::Value;
using pickle::Values;

constexpr std::size_t kMostMeshDims = 16;
constexpr std::int64_t kMostSteps = std::int64_t{1} << 24;
constexpr std::size_t kMostParts = std::size_t{1} << 20;

const Value& require(const Pairs& pairs, std::string_view key, std::string_view of) {
  const Value* value = pickle::find(pairs, key);
  if (value == nullptr) throw_corrupt(fmt::format("{} has no {}", of, key));
  return *value;
}

std::int64_t count_of(const Value& value, std::string_view what) {
  const auto* number = value.get<std::int64_t>();
  if (number == nullptr || *number < 0) throw_corrupt(fmt::format("{} is {}", what, pickle::describe(value)));
  return *number;
}

// The attributes of an instance and the name of its class. The module differs between versions of torch.
struct Instance {
  std::string_view type;
  const Pairs* state = nullptr;
  const Values* args = nullptr;
};

std::optional<Instance> instance_of(const Value& value) {
  const auto* object = value.get<Object>();
  const auto* type = object != nullptr ? (*object)->callable.get<Global>() : nullptr;
  if (type == nullptr || !type->module().starts_with("torch.distributed")) return std::nullopt;
  Instance instance{type->name(), nullptr, &(*object)->args};
  if (!(*object)->states.empty()) instance.state = pickle::mapping_of((*object)->states.back());
  return instance;
}

Instance require_instance(const Value& value, std::string_view what) {
  const std::optional<Instance> instance = instance_of(value);
  if (!instance || instance->state == nullptr)
    throw_corrupt(fmt::format("{} is {}", what, pickle::describe(value)));
  return *instance;
}

// The size of a mesh dimension: an integer, or a nested tuple of integers if several dimensions were
// flattened to one.
std::int64_t product_of(const Value& value, int depth = 0) {
  const Values* items = pickle::sequence_of(value);
  if (items == nullptr) return count_of(value, "the size of its mesh");
  if (depth > 8) throw_corrupt("the sizes of its mesh nest too deep");
  std::int64_t product = 1;
  for (const Value& item : *items) product = checked_mul(product, product_of(item, depth + 1));
  return product;
}

Dims sizes_of(const Value& value) {
  const Values* items = pickle::sequence_of(value);
  if (items == nullptr) return {product_of(value)};
  Dims sizes;
  for (const Value& item : *items) sizes.push_back(product_of(item));
  return sizes;
}

// torch up to 2.9 pickles the mesh as a tensor, 2.11 as a layout with `shape`, and 2.15 as a layout with an
// axis for each dimension.
Dims mesh_shape_of(const Pairs& mesh) {
  if (const Value* layout = pickle::find(mesh, "_layout")) {
    const Instance instance = require_instance(*layout, "the layout of its mesh");
    if (const Value* axes = pickle::find(*instance.state, "axes")) {
      const Values* items = pickle::sequence_of(*axes);
      if (items == nullptr) throw_corrupt("the axes of its mesh are not a tuple");
      Dims shape;
      for (const Value& axis : *items) {
        const Instance flat = require_instance(axis, "an axis of its mesh");
        shape.push_back(product_of(require(*flat.state, "shape", "an axis of its mesh")));
      }
      return shape;
    }
    return sizes_of(require(*instance.state, "shape", "the layout of its mesh"));
  }
  for (const char* key : {"mesh", "_mesh"}) {
    const Value* ranks = pickle::find(mesh, key);
    const std::optional<TorchTensor> tensor = ranks != nullptr ? torch_tensor_of(*ranks) : std::nullopt;
    if (tensor) return tensor->shape;
  }
  throw_corrupt("its mesh has no layout");
}

std::vector<std::int64_t> ints_of(const Value& value, std::string_view what) {
  std::vector<std::int64_t> numbers;
  if (value.is_none()) return numbers;
  const Values* items = pickle::sequence_of(value);
  if (items == nullptr) throw_corrupt(fmt::format("{} is {}", what, pickle::describe(value)));
  for (const Value& item : *items) numbers.push_back(count_of(item, what));
  return numbers;
}

void read_mesh(const Value& value, DTensor& tensor) {
  const Pairs& mesh = *require_instance(value, "its mesh").state;
  tensor.mesh = mesh_shape_of(mesh);
  if (tensor.mesh.size() > kMostMeshDims)
    throw_corrupt(fmt::format("a mesh of {} dimensions", tensor.mesh.size()));
  const std::int64_t count = checked_numel(tensor.mesh);
  if (count < 1 || count > kMostRanks) throw_corrupt(fmt::format("a mesh of {} ranks", count));
  tensor.position = ints_of(require(mesh, "_coordinate_on_dim", "its mesh"), "its place in the mesh");
  if (!tensor.position.empty() && tensor.position.size() != tensor.mesh.size())
    throw_corrupt(
        fmt::format("place {} in a mesh of {}", to_string(tensor.position), to_string(tensor.mesh)));
  for (std::size_t d = 0; d < tensor.position.size(); ++d) {
    if (tensor.position[d] >= tensor.mesh[d])
      throw_corrupt(
          fmt::format("place {} in a mesh of {}", to_string(tensor.position), to_string(tensor.mesh)));
  }
  for (const char* key : {"_flatten_rank_map", "_flatten_mesh_list"}) {
    const Value* ranks = pickle::find(mesh, key);
    if (ranks != nullptr) tensor.ranks = ints_of(*ranks, "the ranks of its mesh");
    if (!tensor.ranks.empty()) break;
  }
}

Placement placement_of(const Value& value, std::size_t dims) {
  const std::optional<Instance> instance = instance_of(value);
  if (!instance) throw_corrupt(fmt::format("a placement that is {}", pickle::describe(value)));
  if (instance->type == "Replicate") return {};
  if (instance->type != "Shard" && instance->type != "_StridedShard") {
    throw Error(
        ErrorKind::kFailure,
        fmt::format("it is placed as {} over the ranks, which accel cannot put together", instance->type))
        .hint("redistribute it to shards or replicas before saving");
  }
  if (instance->state == nullptr) throw_corrupt("a placement without a dimension");
  Placement placement;
  placement.dim = count_of(require(*instance->state, "dim", "its placement"), "the dimension of a placement");
  if (static_cast<std::size_t>(placement.dim) >= dims)
    throw_corrupt(fmt::format("it is cut in dimension {}", placement.dim));
  if (instance->type == "_StridedShard") {
    placement.split_factor =
        count_of(require(*instance->state, "split_factor", "its placement"), "a split factor");
    if (placement.split_factor < 1 || placement.split_factor > kMostRanks)
      throw_corrupt(fmt::format("a split factor of {}", placement.split_factor));
  }
  return placement;
}

// A range of the whole tensor along one dimension.
struct Run {
  std::int64_t begin = 0;
  std::int64_t size = 0;
};
using Runs = std::vector<Run>;

// Elements [begin, end) of the concatenation of `runs`.
Runs slice_of(const Runs& runs, std::int64_t begin, std::int64_t end) {
  Runs sliced;
  std::int64_t at = 0;
  for (const Run& run : runs) {
    const std::int64_t from = std::max(begin, at);
    const std::int64_t to = std::min(end, at + run.size);
    if (from < to) sliced.push_back({run.begin + from - at, to - from});
    at += run.size;
  }
  return sliced;
}

std::int64_t total_of(const Runs& runs) {
  std::int64_t total = 0;
  for (const Run& run : runs) total += run.size;
  return total;
}

// The runs of torch.chunk(runs, count)[index].
Runs chunk_of(const Runs& runs, std::int64_t count, std::int64_t index) {
  const std::int64_t total = total_of(runs);
  const std::int64_t size = total / count + (total % count != 0 ? 1 : 0);
  // A chunk beyond the last one is empty. The product is checked, as `index` comes from a file.
  const std::int64_t begin = std::min(total, checked_mul(size, index));
  return slice_of(runs, begin, std::min(total, begin + size));
}

Runs shard_of(const Runs& runs, const Placement& placement, std::int64_t count, std::int64_t index) {
  if (placement.split_factor == 1) return chunk_of(runs, count, index);
  if (checked_mul(placement.split_factor, static_cast<std::int64_t>(runs.size())) > kMostSteps)
    throw_corrupt(fmt::format("a split factor of {} of what is cut already", placement.split_factor));
  Runs shard;
  for (std::int64_t part = 0; part < placement.split_factor; ++part) {
    const Runs piece = chunk_of(chunk_of(runs, placement.split_factor, part), count, index);
    shard.insert(shard.end(), piece.begin(), piece.end());
  }
  return shard;
}

}  // namespace

std::optional<DTensor> dtensor_of(const Value& value) {
  const ObjectParts* parts = pickle::object_of(value, "torch._tensor", "_rebuild_from_type_v2");
  if (parts == nullptr || parts->args.size() != 4) return std::nullopt;
  const auto* type = parts->args[1].get<Global>();
  const Pairs* state = pickle::attributes_of(parts->args[3]);
  if (type == nullptr || type->name() != "DTensor" || state == nullptr) return std::nullopt;

  DTensor tensor;
  std::optional<TorchTensor> local = torch_tensor_of(require(*state, "_local_tensor", "a DTensor"));
  if (!local) throw_corrupt("a DTensor without a local tensor");
  tensor.local = std::move(*local);
  const Pairs& spec = *require_instance(require(*state, "_spec", "a DTensor"), "its spec").state;
  const std::optional<Instance> meta = instance_of(require(spec, "tensor_meta", "its spec"));
  if (!meta || meta->args->empty()) throw_corrupt("its spec has no shape");
  tensor.shape = dims_of(meta->args->front());
  (void)checked_nbytes(tensor.shape, item_bytes(tensor.local.dtype));
  read_mesh(require(spec, "mesh", "its spec"), tensor);
  const Values* placements = pickle::sequence_of(require(spec, "placements", "its spec"));
  if (placements == nullptr || placements->size() != tensor.mesh.size())
    throw_corrupt(fmt::format("its placements do not fit a mesh of {} dimensions", tensor.mesh.size()));
  for (const Value& placement : *placements) {
    tensor.placements.push_back(placement_of(placement, tensor.shape.size()));
  }
  return tensor;
}

std::vector<LocalPart> parts_of(const DTensor& tensor) {
  if (tensor.position.empty()) return {};
  std::vector<Runs> runs;
  for (const std::int64_t size : tensor.shape) runs.push_back({{0, size}});
  for (std::size_t m = 0; m < tensor.mesh.size(); ++m) {
    const Placement& placement = tensor.placements[m];
    if (placement.dim < 0) continue;
    Runs& along = runs[static_cast<std::size_t>(placement.dim)];
    along = shard_of(along, placement, tensor.mesh[m], tensor.position[m]);
  }
  Dims expected;
  std::size_t count = 1;
  for (const Runs& along : runs) {
    expected.push_back(total_of(along));
    count = checked_mul(count, along.size());
  }
  if (expected != tensor.local.shape) {
    throw_corrupt(fmt::format("its part on this rank is {}, but its placement says {}",
                              to_string(tensor.local.shape), to_string(expected)));
  }
  if (checked_numel(expected) == 0) return {};
  if (count > kMostParts) throw_corrupt(fmt::format("it is cut into {} parts", count));

  std::vector<LocalPart> parts{{}};
  for (const Runs& along : runs) {
    std::vector<LocalPart> longer;
    for (const LocalPart& part : parts) {
      std::int64_t at = 0;
      for (const Run& run : along) {
        LocalPart next = part;
        next.box.offsets.push_back(run.begin);
        next.box.sizes.push_back(run.size);
        next.local_offset.push_back(at);
        longer.push_back(std::move(next));
        at += run.size;
      }
    }
    parts = std::move(longer);
  }
  return parts;
}

}  // namespace accel::ckpt
