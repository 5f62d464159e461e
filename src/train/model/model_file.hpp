#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/api/module.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "structure/model_outline.hpp"
#include "structure/structure.hpp"

namespace accel::train {

class SkippingReader;

/// A TorchScript file opened without reading its parameters.
///
/// The module's code and attributes are loaded. The parameters' storages have the right sizes but hold no
/// data, and take no memory as long as they are not touched. Their bytes are read later, range by range, with
/// read_parameter(). Buffers and other tensor attributes are read at once. A tensor attribute in a
/// parameter's storage gets a storage of its own, because the parameter is sharded; if it requires grad, it
/// is an Error of kind kUsage.
class ModelFile {
 public:
  /// A missing file, or a file that is not a TorchScript archive, is an Error of kind kUsage.
  static ModelFile open(const std::filesystem::path& path);

  /// Opens a file of which this rank has the outline alone, which another rank made, or which was imported
  /// from a program of torch.export. read_parameter() must not be called.
  static ModelFile from_outline(ModelOutline outline);
  /// The file without the values of its parameters, except those that another attribute shares.
  [[nodiscard]] ModelOutline outline() const;

  ModelFile(ModelFile&&) noexcept;
  ModelFile& operator=(ModelFile&&) noexcept;
  ~ModelFile();

  /// The modules in pre-order and the parameters in module order, tied parameters once. `cross_unit` are the
  /// parameters that cross_unit_reads() found. A quantized model is an Error of kind kUsage.
  [[nodiscard]] ModelStructure structure(const std::unordered_set<const at::TensorImpl*>& cross_unit) const;

  /// The parameters' (empty) tensors, in the order of structure().parameters.
  [[nodiscard]] const std::vector<at::Tensor>& parameters() const { return parameters_; }

  /// A parameter whose values are not in the file, because the model was exported from the meta device.
  [[nodiscard]] std::optional<std::size_t> parameter_without_values() const;

  /// Fills `out` with elements [begin, begin + out.size() / itemsize) of parameter `index`, row-major. The
  /// parameter must have values. If they are stored in another order, all of them stay in memory until
  /// another parameter is read. One thread at a time may call it.
  void read_parameter(std::size_t index, std::int64_t begin, std::span<std::byte> out) const;

  /// What ckpt::graph_fingerprint() says of the file, or of the outline.
  [[nodiscard]] std::uint32_t graph_fingerprint() const;
  [[nodiscard]] torch::jit::Module& module() { return module_; }
  /// The extra file `accel.json` that our exporters add; empty if there is none.
  [[nodiscard]] const std::string& accel_json() const { return accel_json_; }
  /// The bytes of the record `name` of the archive, such as "extra/accel.json"; empty if there is none.
  /// Throws Error (kCorrupt) if the CRC is wrong.
  [[nodiscard]] std::vector<std::byte> record(const std::string& name) const;

 private:
  ModelFile();
  static ModelFile load(std::shared_ptr<SkippingReader> reader);
  void read_attributes();
  [[nodiscard]] c10::Storage copy_of_storage(std::size_t parameter);

  torch::jit::Module module_;
  std::shared_ptr<SkippingReader> reader_;
  std::vector<at::Tensor> parameters_;
  std::vector<std::vector<std::string>> names_;        ///< All names of each parameter.
  std::vector<std::optional<std::uint64_t>> offsets_;  ///< Offset in the file of each parameter's storage.
  std::unordered_set<std::uint64_t> shared_;           ///< Offsets of storages that another attribute shares.
  std::string accel_json_;
  /// The values of the last parameter that was read and is stored in another order than row-major.
  struct RowMajor {
    std::size_t index = 0;
    at::Tensor values;
  };
  mutable RowMajor row_major_;
};

/// The class name of a module: the last atom of its TorchScript type name.
std::string class_name_of(const torch::jit::Module& module);

}  // namespace accel::train
