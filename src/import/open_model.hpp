#pragma once

#include <filesystem>
#include <optional>

#include "import/program_signature.hpp"
#include "structure/archive_model.hpp"

namespace accel {

/// A model file that is only looked at.
struct OpenedModel {
  ArchiveModel archive;
  bool has_values = true;                     ///< The file has the values of all parameters.
  std::optional<ProgramSignature> signature;  ///< That of a program of torch.export.
};

/// Opens a TorchScript file or one of torch.export, which is imported in memory, without tensor data. Throws
/// what ArchiveModel::open() and import_structure() throw.
[[nodiscard]] OpenedModel open_model(const std::filesystem::path& path);

}  // namespace accel
