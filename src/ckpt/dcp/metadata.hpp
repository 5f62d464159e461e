#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
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
  std::vector<DcpRange> copies = {};  ///< Of other ranks that saved without each other.
};

/// What `.metadata` says, without the parts that only Python needs. Tensors and objects refer to the files:
/// who takes them out keeps those.
struct DcpMetadata {
  std::vector<DcpTensor> tensors;                      ///< Sorted by FQN.
  std::vector<DcpObject> objects;                      ///< Sorted by FQN.
  std::vector<std::shared_ptr<const DcpFiles>> files;  ///< Of one `.metadata`, or of each rank's.
  std::string version;                                 ///< "1.0.0"; empty in checkpoints of about torch 2.2.
};

/// Parses `.metadata` as written by torch 2.1 to 2.15 (5 or 6 tensor properties, 3 or 5 fields). Nothing in
/// it is executed. Checks that shapes and boxes are sound, that boxes lie within their tensor, and that every
/// chunk has its place in a file; overlap and holes are the reader's concern. Takes time and memory in
/// proportion to the chunks; from a megabyte on it uses a second thread. Throws Error (kCorrupt).
[[nodiscard]] DcpMetadata parse_dcp_metadata(std::span<const std::byte> bytes);

}  // namespace accel::ckpt
