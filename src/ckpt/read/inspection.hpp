#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "ckpt/read/kind.hpp"
#include "ckpt/read/search.hpp"
#include "ckpt/tensor/box.hpp"
#include "ckpt/tensor/dtype.hpp"

namespace accel::ckpt {

/// A tensor, without its data.
struct InspectedTensor {
  std::string name;
  DType dtype = DType::kFloat32;
  Dims shape;
  std::uint64_t bytes = 0;
  std::uint64_t chunks = 1;
  std::uint64_t copies = 0;        ///< Places that hold parts of it once more.
  std::vector<std::string> files;  ///< Those that hold a part of it, sorted; of one file, none.
};

/// Anything in a checkpoint that is not a tensor.
struct InspectedObject {
  std::string name;
  std::string value;  ///< Short, for people.
};

/// A file that belongs to the checkpoint, or a record of an archive.
struct InspectedFile {
  std::string name;
  std::uint64_t bytes = 0;
  bool missing = false;  ///< Referred to, but not there.
};

/// What a path holds.
struct Inspection {
  std::filesystem::path path;
  Kind kind = Kind::kUnknown;
  std::vector<InspectedTensor> tensors;  ///< Sorted by name.
  std::vector<InspectedObject> objects;  ///< Sorted by name.
  std::vector<InspectedFile> files;      ///< Sorted by name.
  /// The `__metadata__` of safetensors, or the version of a DCP checkpoint as "version".
  std::map<std::string, std::string> metadata;

  [[nodiscard]] std::uint64_t tensor_bytes() const;
};

/// Whether a checkpoint of this kind is a single file.
[[nodiscard]] bool has_one_file(Kind kind);

/// Looks at one checkpoint or model file. Reads no tensor data, and runs nothing. Throws Error: kMissing,
/// kCorrupt, and kFailure for something that is no checkpoint.
[[nodiscard]] Inspection inspect(const std::filesystem::path& path);

/// What inspect_all found in a directory.
struct InspectedDirectory {
  std::vector<Inspection> checkpoints;
  std::vector<DamagedCheckpoint> damaged;  ///< What looks like a checkpoint and cannot be opened as one.
};

/// As inspect, but a directory that is no checkpoint itself gives each of those that list_checkpoints finds.
[[nodiscard]] InspectedDirectory inspect_all(const std::filesystem::path& path);

}  // namespace accel::ckpt
