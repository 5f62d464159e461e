#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <unordered_set>
#include <vector>

#include "ckpt/torchscript/modules.hpp"
#include "structure/structure.hpp"

namespace accel {

/// What a TorchScript file says about a model, read without libtorch and without its data: what ModelFile
/// gives when it is opened, as far as planning needs it.
class ArchiveModel {
 public:
  /// Throws Error (kUsage) if the file is missing, or is no TorchScript archive.
  static ArchiveModel open(const std::filesystem::path& path);

  /// Exactly ModelFile::structure() with graph/cross_unit_reads.hpp over `units`, which are paths of modules:
  /// modules in pre-order; parameters in module order, tied ones once; those marked cross_unit that some
  /// module reads past the boundary of one of `units`. Throws Error (kUsage) for a parameter that is more
  /// than a dense tensor, and for a quantized model.
  [[nodiscard]] ModelStructure structure(const std::unordered_set<std::string>& units) const;

  /// Bytes of the tensors that are no parameters, which every rank holds: each storage once.
  [[nodiscard]] std::uint64_t replicated_bytes() const;
  /// Bytes of the buffers in the model's state dict: without those named in `non_persistent`.
  [[nodiscard]] std::uint64_t persistent_bytes(const std::vector<std::string>& non_persistent) const;
  /// The extra file `accel.json` that our exporters add; empty if there is none.
  [[nodiscard]] const std::string& accel_json() const { return accel_json_; }

 private:
  ArchiveModel() = default;

  ckpt::ScriptModules archive_;
  std::string accel_json_;
};

}  // namespace accel
