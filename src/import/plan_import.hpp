#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ckpt/plan/output_plan.hpp"
#include "ckpt/pt2/archive.hpp"
#include "import/program_signature.hpp"

namespace accel {

/// The values that a file gets.
enum class ImportedValues {
  kAll,
  kBuffers,  ///< Parameters are on the meta device; their values are read from elsewhere.
};

/// What an import writes.
struct ImportPlan {
  ckpt::OutputFile file;
  /// Whether the archive has the values of all parameters. The file has no values for the others, whatever
  /// was asked for.
  bool has_values = true;
  std::size_t modules = 0;
  std::size_t operators = 0;
  std::size_t tensors = 0;
  std::vector<std::string> inputs;            ///< The inputs of the model, in order.
  ProgramSignature signature;                 ///< The inputs with their shapes, and the outputs.
  std::vector<std::string> random_operators;  ///< Places that draw random numbers in either mode.
};

/// Plans the TorchScript file `name` with the model of `archive`: its modules under their class names, its
/// parameters and buffers under their names, and for each call of a module a method with the operators that
/// were recorded. libtorch runs it with autograd, as it runs any TorchScript model. Throws Error: kFailure
/// that names what is not imported and where the author wrote it, kCorrupt if the archive contradicts itself.
[[nodiscard]] ImportPlan plan_import(std::string name, const ckpt::Pt2Archive& archive,
                                     ImportedValues values = ImportedValues::kAll);

}  // namespace accel
