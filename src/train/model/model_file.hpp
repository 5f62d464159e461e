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
/// The module's code and attributes are loaded; the parameters' storages have the right sizes but hold no
/// data, and cost no memory as long as nobody touches them. Their bytes are read later, range by range, with
/// read_parameter(). Buffers and other tensor attributes are read at once; one that lies in a parameter's
/// storage gets a storage of its own, as what it shares is cut into shards (an Error of kind kUsage, if it
/// requires grad).
class ModelFile {
 public:
  /// A missing file, or one that is no TorchScript archive, is an Error of kind kUsage.
  static ModelFile open(const std::filesystem::path& path);

  /// A file that another rank sees, from its outline(): read_parameter() must not be called.
  static ModelFile from_outline(ModelOutline outline);
  /// All of it but the values of its parameters, except of those that another attribute needs. Not of one
  /// from an outline.
  [[nodiscard]] ModelOutline outline() const;

  ModelFile(ModelFile&&) noexcept;
  ModelFile& operator=(ModelFile&&) noexcept;
  ~ModelFile();

  /// Modules in pre-order and parameters in module order, tied ones once.
  /// `cross_unit` marks the parameters that graph/cross_unit_reads.hpp found. A quantized model is an Error
  /// of kind kUsage.
  [[nodiscard]] ModelStructure structure(const std::unordered_set<const at::TensorImpl*>& cross_unit) const;

  /// The parameters' (empty) tensors, in the order of structure().parameters.
  [[nodiscard]] const std::vector<at::Tensor>& parameters() const { return parameters_; }

  /// A parameter whose values are not in the file, as in a file that was exported from the meta device.
  [[nodiscard]] std::optional<std::size_t> parameter_without_values() const;

  /// Fills `out` with elements [begin, begin + out.size() / itemsize) of parameter `index`, row-major. The
  /// parameter must have values.
  void read_parameter(std::size_t index, std::int64_t begin, std::span<std::byte> out) const;

  [[nodiscard]] torch::jit::Module& module() { return module_; }
  /// The extra file `accel.json` that our exporters add; empty if there is none.
  [[nodiscard]] const std::string& accel_json() const { return accel_json_; }

 private:
  ModelFile();
  static ModelFile load(std::shared_ptr<SkippingReader> reader);
  void read_attributes();
  [[nodiscard]] c10::Storage copy_of_storage(std::size_t parameter);

  torch::jit::Module module_;
  std::shared_ptr<SkippingReader> reader_;
  std::vector<at::Tensor> parameters_;
  std::vector<std::vector<std::string>> names_;        ///< Of each parameter.
  std::vector<std::optional<std::uint64_t>> offsets_;  ///< In the file, of each parameter's storage.
  std::unordered_set<std::uint64_t> shared_;           ///< Those of them in which another attribute lies.
  std::string accel_json_;
};

/// The class name of a module: the last atom of its TorchScript type name.
std::string class_name_of(const torch::jit::Module& module);

}  // namespace accel::train
