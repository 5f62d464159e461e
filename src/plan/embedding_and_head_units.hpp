#pragma once

#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "structure/structure.hpp"

namespace accel {

/// The modules at the two ends of a language model that are units though the wrap policy does not name them.
struct EmbeddingAndHeadUnits {
  std::vector<std::string> embeddings;
  std::vector<std::string> heads;  ///< Run last in forward and first in backward: never freed in between.
};

/// In FSDP version 2, as Accelerate does, the input embedding and the output head get units of their own, if
/// they do not share a weight: the root's parameters stay gathered for a whole step, these two would be most
/// of them, and their gradients would come in until its end.
///
/// A TorchScript file does not say which modules these are. They are the modules of a class `...Embedding`
/// and of class `Linear` whose weights have the same shape, [vocabulary, width], two different numbers,
/// outside of the units of `wrapped`, neither tied, read across units nor ignored. None, if nothing is
/// wrapped.
///
/// Source: accelerate/utils/fsdp_utils.py, fsdp2_prepare_model. Its tail unit also has the final norm, and
/// tied embeddings and heads; here they are the root's, which is gathered as long.
EmbeddingAndHeadUnits embedding_and_head_units(const ModelStructure& model, const core::FsdpConfig& config,
                                               const std::vector<std::string>& wrapped);

}  // namespace accel
