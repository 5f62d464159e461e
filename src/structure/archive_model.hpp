#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "ckpt/torchscript/modules.hpp"
#include "ckpt/torchscript/signature.hpp"
#include "ckpt/zip/index.hpp"
#include "structure/structure.hpp"

namespace accel {

/// The structure of a model in a TorchScript file, read without libtorch and without the tensors' data: the
/// part of what ModelFile gives that planning needs.
class ArchiveModel {
 public:
  /// Throws Error (kUsage) if the file is missing or is not a TorchScript archive.
  static ArchiveModel open(const std::filesystem::path& path);
  /// Reads the bytes of a file like open(). Messages call them `path`.
  static ArchiveModel from_bytes(std::vector<std::byte> file, const std::filesystem::path& path);

  /// Exactly what ModelFile::structure() gives with cross_unit_reads() over `units`, which are paths of
  /// modules: the modules in pre-order; the parameters in module order, tied parameters once; `cross_unit`
  /// set for parameters that are read across one of `units`. Throws Error (kUsage) for a parameter that is
  /// not a dense tensor, and for a quantized model.
  [[nodiscard]] ModelStructure structure(const std::unordered_set<std::string>& units) const;

  /// Bytes of the tensors that are not parameters, which every rank holds. Each storage counts once.
  [[nodiscard]] std::uint64_t replicated_bytes() const;
  /// Bytes of the buffers in the model's state dict, which lacks those named in `non_persistent`.
  [[nodiscard]] std::uint64_t persistent_bytes(const std::vector<std::string>& non_persistent) const;
  /// Whether the file has the values of all parameters. Those of a file with the structure alone are on the
  /// meta device.
  [[nodiscard]] bool has_values() const;
  /// The arguments of the root's forward without `self`; empty if it has no such method.
  [[nodiscard]] std::vector<ckpt::ScriptArgument> forward_arguments() const;
  /// The type that the root's forward returns, such as "Tensor"; empty if it has no such method.
  [[nodiscard]] std::string forward_result() const;
  /// The extra file `accel.json` that our exporters add; empty if there is none.
  [[nodiscard]] const std::string& accel_json() const { return accel_json_; }
  /// The extra file that describes the compiled code of layers (compiled_layers.hpp); empty if there is none.
  [[nodiscard]] const std::string& compiled_json() const { return compiled_json_; }

 private:
  ArchiveModel() = default;
  static ArchiveModel read(const ckpt::FileWindow& window);
  [[nodiscard]] std::string_view forward_source() const;

  ckpt::ScriptModules archive_;
  std::string accel_json_;
  std::string compiled_json_;
};

}  // namespace accel
