#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "import/plan_import.hpp"

namespace accel {

/// The structure of a model of torch.export, as the bytes of a TorchScript file whose parameters are on the
/// meta device, unless their values were asked for. Its buffers are in it, and apart from these values it
/// takes a few megabytes, however large the model is.
struct ImportedStructure {
  std::vector<std::byte> file;
  bool has_values = true;  ///< Whether the .pt2 file, as a checkpoint, has the values of all parameters.
  std::vector<std::string> random_operators;  ///< Places that draw random numbers in either mode.
  ProgramSignature signature;                 ///< The inputs and outputs of the model.
};

/// Whether the file is one of torch.export. A file that cannot be read is not.
[[nodiscard]] bool is_pt2(const std::filesystem::path& path);

/// Imports the model's modules, graph and buffers, and by default no values of parameters. Throws what
/// plan_import() throws.
[[nodiscard]] ImportedStructure import_structure(const std::filesystem::path& path,
                                                 ImportedValues values = ImportedValues::kBuffers);

}  // namespace accel
