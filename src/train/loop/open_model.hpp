#pragma once

#include <filesystem>

#include "core/config/config.hpp"
#include "data/needed_fields.hpp"
#include "train/c10d/group.hpp"
#include "train/model/model_file.hpp"

namespace accel::train {

/// The model of a run.
struct OpenedModel {
  ModelFile file;
  /// The file or directory with the weights, if they are not in `file`.
  std::filesystem::path weights;
  InputDtypes input_dtypes = {};  ///< What a program of torch.export says of the inputs that fields get.
};

/// Opens the model file of a run. Each rank opens it, or with `broadcast_from_rank0` rank 0 alone, which
/// sends the other ranks everything but the parameters' values. Of a program of torch.export each rank
/// imports the structure into memory, and the weights are read from the program's file if the configuration
/// names no others. Collective.
///
/// A rank other than 0 that does not see the file or the weights, and would have to read them, is an Error of
/// kind kUsage whose hint names that setting.
OpenedModel open_model(const config::ModelConfig& config, Group& group);

}  // namespace accel::train
