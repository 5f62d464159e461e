#pragma once

#include <torch/csrc/jit/api/module.h>

#include <string>
#include <unordered_set>
#include <vector>

namespace accel::train {

/// Makes the lookup of each module in `modules`, which are paths, a call of kModuleEmbedding
/// (run/module_embedding.hpp): every `aten::embedding` in the module's own `weight`, and every call of
/// torch.nn.functional.embedding with it and without a max_norm, as scripted models have it. As with
/// replace_linears(), instances that share the class share the change.
///
/// Returns the paths in `modules` of which no method has such a lookup. Call before the first run, and before
/// methods are rewritten (rewrite.hpp).
[[nodiscard]] std::vector<std::string> replace_embeddings(const torch::jit::Module& root,
                                                          const std::unordered_set<std::string>& modules);

}  // namespace accel::train
