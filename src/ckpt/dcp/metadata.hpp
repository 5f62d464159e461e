#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/dcp/chunks.hpp"
#include "ckpt/tensor/box.hpp"
#include "ckpt/tensor/dtype.hpp"
#include "ckpt/tensor/state_path.hpp"

namespace accel::ckpt {

struct DcpTensor {
  std::string fqn;
  StatePath path;  ///< From planner_data; {fqn} if that has no such key.
  DType dtype = DType::kFloat32;
  Dims shape;
  DcpChunks chunks;
  std::size_t position = 0;  ///< Its place in `.metadata`; torch writes them in the order of the state dict.
  DcpChunks copies;          ///< Of boxes in `chunks`, by ranks that saved without each other.
};

/// A "bytes" item: any Python object, written with torch.save.
struct DcpObject {
  std::string fqn;
  StatePath path;
  DcpRange where;
};

/// What `.metadata` says, without the parts that only Python needs. Tensors and objects refer to the files:
/// who takes them out keeps those.
struct DcpMetadata {
  std::vector<DcpTensor> tensors;                      ///< Sorted by FQN.
  std::vector<DcpObject> objects;                      ///< Sorted by FQN.
  std::vector<std::shared_ptr<const DcpFiles>> files;  ///< Of one `.metadata`, or of each rank's.
  std::string version;                                 ///< "1.0.0"; empty in checkpoints of about torch 2.2.
};

}  // namespace accel::ckpt
