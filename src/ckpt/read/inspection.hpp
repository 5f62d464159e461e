#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "ckpt/read/kind.hpp"
#include "ckpt/read/layer_summary.hpp"
#include "ckpt/read/layout_parts.hpp"
#include "ckpt/read/search.hpp"
#include "ckpt/tensor/box.hpp"
#include "ckpt/tensor/dtype.hpp"

namespace accel::ckpt {

/// What an entry of a checkpoint belongs to.
enum class Part {
  kWeights,
  kOptimizer,
  kOther,  ///< Other state of a run.
};

/// A tensor, without its data.
struct InspectedTensor {
  std::string name;
  DType dtype = DType::kFloat32;
  Dims shape;
  std::uint64_t bytes = 0;  ///< 0 if the dtype is kUnknown.
  std::uint64_t chunks = 1;
  std::uint64_t copies = 0;        ///< Chunks that another rank has written once more.
  std::vector<std::string> files;  ///< The files that hold a part of it, sorted; empty if has_one_file(kind).
  Part part = Part::kWeights;
  std::string weight = {};  ///< Its name without the keys above the weights; empty if it is not one of them.
};

/// Anything in a checkpoint that is not a tensor.
struct InspectedObject {
  std::string name;
  std::string value;  ///< A short text for people.
  Part part = Part::kWeights;
};

/// A file that belongs to the checkpoint, or a record of an archive.
struct InspectedFile {
  std::string name;
  std::uint64_t bytes = 0;
  bool missing = false;  ///< The checkpoint refers to it, but it is not there.
};

/// What a path holds.
struct Inspection {
  std::filesystem::path path;
  Kind kind = Kind::kUnknown;
  std::vector<InspectedTensor> tensors;  ///< The tensors, sorted by name.
  std::vector<InspectedObject> objects;  ///< The objects, sorted by name.
  std::vector<InspectedFile> files;      ///< The files, sorted by name.
  /// The `__metadata__` of safetensors, or the version of a DCP checkpoint as "version".
  std::map<std::string, std::string> metadata;
  /// The keys above the weights, or above an optimizer that is alone; several if it is not clear which
  /// weights are meant. Empty if there are none.
  std::vector<std::string> roots;
  std::vector<LayoutPart> beside;  ///< What commands leave out that take the weights.

  [[nodiscard]] std::uint64_t tensor_bytes() const;
  /// The weights, summed up by layer.
  [[nodiscard]] std::vector<LayerRow> layers() const;
};

/// Whether a checkpoint of this kind is a single file.
[[nodiscard]] bool has_one_file(Kind kind);

/// Describes one checkpoint or model file. It reads no tensor data and executes nothing. Throws Error:
/// kMissing, kCorrupt, or kFailure if `path` is not a checkpoint.
[[nodiscard]] Inspection inspect(const std::filesystem::path& path);

/// What inspect_all found in a directory.
struct InspectedDirectory {
  std::vector<Inspection> checkpoints;
  std::vector<DamagedCheckpoint> damaged;  ///< What looks like a checkpoint, but cannot be opened.
};

/// Inspects `path`; for a directory that is not a checkpoint itself, all that list_checkpoints finds in it.
[[nodiscard]] InspectedDirectory inspect_all(const std::filesystem::path& path);

}  // namespace accel::ckpt
