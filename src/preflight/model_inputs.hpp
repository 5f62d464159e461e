#pragma once

#include <string>
#include <vector>

#include "ckpt/torchscript/signature.hpp"
#include "core/config/config.hpp"
#include "data/needed_fields.hpp"
#include "import/program_signature.hpp"
#include "structure/model_notes.hpp"

namespace accel {

/// Throws Error (kUsage) if training.model.inputs cannot be meant for a forward whose arguments have these
/// names: the same names in another order, or another field for an argument whose meaning its name tells.
/// `names` may be empty.
void require_inputs(const config::ModelConfig& config, const std::vector<std::string>& names);

/// The labels that a model with these notes needs. Only a model that computes its loss itself shifts labels.
[[nodiscard]] Labels labels_for(const config::ModelConfig& config, const ModelNotes& notes);

/// Throws Error (kUsage) if forward takes more or fewer arguments than training.model.inputs has.
void require_argument_count(const config::ModelConfig& config,
                            const std::vector<ckpt::ScriptArgument>& arguments);

/// The dtypes of a program's inputs by the fields that training.model.inputs gives them. A field that two
/// inputs get has that of the first.
[[nodiscard]] InputDtypes input_dtypes(const config::ModelConfig& config, const ProgramSignature& signature);

/// Throws Error (kUsage) if documents are packed and the notes say that the model does not keep them apart.
void require_packing(const config::DataSource& source, const ModelNotes& notes);

}  // namespace accel
