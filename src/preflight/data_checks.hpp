#pragma once

#include <cstdint>
#include <optional>

#include "ckpt/store/run_state.hpp"
#include "core/config/loaded_config.hpp"
#include "data/formats/sample_source.hpp"
#include "import/program_signature.hpp"
#include "preflight/training_data.hpp"

namespace accel {

/// What a model says of the data that it takes, as far as its file shows it, and a checkpoint.
struct ModelFacts {
  std::optional<std::int64_t> positions;      ///< The most tokens of a sequence.
  std::optional<std::int64_t> max_positions;  ///< ModelNotes::max_positions
  std::optional<std::int64_t> tokens;         ///< TableSizes::least_tokens
  std::optional<ProgramSignature> signature;  ///< That of a program of torch.export.
  std::optional<Labels> labels;               ///< What it needs; absent if its file is not here.
  std::optional<ckpt::DataPlace> place;       ///< Where a training goes on in its data.
};

/// Checks the data of a training, for training and evaluation, as preflight() says, and returns what it does.
std::optional<TrainingData> check_data(const config::LoadedConfig& loaded, const ModelFacts& facts);

}  // namespace accel
