#pragma once

#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "structure/structure.hpp"

namespace accel {

/// The embedding and head modules of a language model that are units though the wrap policy does not name
/// them.
struct EmbeddingAndHeadUnits {
  std::vector<std::string> embeddings;
  /// They run last in forward and first in backward, and stay gathered in between.
  std::vector<std::string> heads;
};

/// In FSDP version 2 the input embedding and the output head get units of their own if they do not share a
/// weight, as in Accelerate. As parts of the root they would be gathered, and their gradients unsharded, for
/// the whole step.
///
/// A TorchScript file does not say which modules these are. They are taken to be the modules of a class
/// `...Embedding` and of class `Linear` whose weights have the same shape [vocabulary, width] of two
/// different numbers, are outside the units of `wrapped`, and are not tied, read across units or replicated.
/// There are none if nothing is wrapped.
///
/// Source: accelerate/utils/fsdp_utils.py, fsdp2_prepare_model. There the tail unit also has the final norm,
/// and tied embeddings and heads. Here they belong to the root, which is gathered as long.
EmbeddingAndHeadUnits embedding_and_head_units(const ModelStructure& model, const config::FsdpConfig& config,
                                               const std::vector<std::string>& wrapped);

}  // namespace accel
