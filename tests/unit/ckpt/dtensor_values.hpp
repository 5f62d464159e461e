#pragma once

#include "ckpt/pickle/value.hpp"
#include "torch_files.hpp"

namespace accel::ckpt::testing {

using pickle::Dict;
using pickle::Global;
using pickle::Tuple;
using pickle::Value;

inline Value instance_in(const char* module, const char* name, const Dict& state) {
  return pickle::instance(Global(module, name), state);
}

inline Value placement(const char* name, const Dict& state = {}) {
  return instance_in("torch.distributed.tensor.placement_types", name, state);
}

inline Value shape_of(const Tuple& sizes) { return pickle::reduce(Global("torch", "Size"), {sizes}); }

// A DTensor of shape [5, 2], whose mesh has these attributes, as rank 1 of 2 has it: rows 3 and 4.
inline Value dtensor_with(const Dict& mesh, const Tuple& placements,
                          const Value& local = view_of("0", 4, 0, {2, 2}, {2, 1})) {
  pickle::ObjectParts meta;
  meta.form = pickle::ObjectParts::Form::kNew;
  meta.callable = Global("torch.distributed.tensor._dtensor_spec", "TensorMeta");
  meta.args = {shape_of(Tuple{{5, 2}}), Tuple{{2, 1}}, Global("torch", "float32")};
  const Value spec =
      instance_in("torch.distributed.tensor._dtensor_spec", "DTensorSpec",
                  Dict{{{"mesh", instance_in("torch.distributed.device_mesh", "DeviceMesh", mesh)},
                        {"placements", placements},
                        {"tensor_meta", pickle::Object(meta)}}});
  return pickle::reduce(
      Global("torch._tensor", "_rebuild_from_type_v2"),
      {Global("torch._utils", "_rebuild_wrapper_subclass"), Global("torch.distributed.tensor", "DTensor"),
       Tuple{{Global("torch.distributed.tensor", "DTensor"), Global("torch", "float32"), Tuple{{5, 2}}}},
       Tuple{{pickle::None{}, Dict{{{"_local_tensor", local}, {"_spec", spec}}}}}});
}

inline Dict mesh_211(const Tuple& shape, const Tuple& position) {
  return Dict{
      {{"_layout", instance_in("torch.distributed._mesh_layout", "_MeshLayout", Dict{{{"shape", shape}}})},
       {"_flatten_rank_map", Tuple{{0, 1}}},
       {"_coordinate_on_dim", position}}};
}

inline const Value kRows = placement("Shard", Dict{{{"dim", 0}}});

}  // namespace accel::ckpt::testing
