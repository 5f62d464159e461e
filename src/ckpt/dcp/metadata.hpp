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

/// A tensor of a `.metadata`.
struct DcpTensor {
  std::string fqn;
  StatePath path;  ///< The path in planner_data, or {fqn} if it has none.
  DType dtype = DType::kFloat32;
  Dims shape;
  DcpChunks chunks;
  /// Position among the tensors of `.metadata`, which torch writes in the order of the state dict.
  std::size_t position = 0;
  DcpChunks copies;                ///< Further chunks of boxes in `chunks`, by ranks that saved on their own.
  std::string unknown_dtype = {};  ///< The name of the dtype if it is kUnknown, such as "torch.float33".
};

/// A "bytes" item: any Python object, written with torch.save.
struct DcpObject {
  std::string fqn;
  StatePath path;
  DcpRange where;
  std::vector<DcpRange> copies = {};  ///< Copies by other ranks that saved without each other.
};

/// The contents of a `.metadata`, without the parts that only Python needs. Tensors and objects refer to
/// `files`, which must outlive them.
struct DcpMetadata {
  std::vector<DcpTensor> tensors;                      ///< The tensors, sorted by FQN.
  std::vector<DcpObject> objects;                      ///< The objects, sorted by FQN.
  std::vector<std::shared_ptr<const DcpFiles>> files;  ///< One for a `.metadata`, or one for each rank.
  std::string version;                                 ///< It is "1.0.0", or empty for about torch 2.2.
};

}  // namespace accel::ckpt
