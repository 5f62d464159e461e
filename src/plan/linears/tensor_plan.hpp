#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "structure/model_notes.hpp"
#include "structure/structure.hpp"

namespace accel {

/// What tensor parallelism does with a module: how its parameters are cut, and what its ranks send. The words
/// in a plan are those of transformers, or the classes of torch.distributed.tensor.parallel.
enum class TensorStyle {
  /// A linear whose weight and bias are cut by rows. Each rank computes a part of the output.
  kColwise,
  /// The same, and every rank gets the whole output.
  kColwiseGather,
  /// A linear whose weight is cut by columns. It takes the output of a kColwise linear and gives the sum over
  /// the ranks, to which the bias is added once.
  kRowwise,
  /// The same for an input that every rank has as a whole.
  kRowwiseSplit,
  /// An embedding whose table is cut by rows: each rank looks up its part of the vocabulary.
  kEmbeddingRowwise,
  /// An embedding whose table is cut by columns, and of whose result every rank gets all.
  kEmbeddingColwise,
  /// A module that is not cut and works on a part of the activations: the norms of queries and keys. The
  /// gradients of its parameters are summed over the ranks.
  kSummedGradient,
};

/// The word of transformers for a style: "colwise".
[[nodiscard]] std::string_view name_of(TensorStyle style);

/// The style that a plan names. Throws Error (kUsage) for another word, which `pattern` has in `origin`.
[[nodiscard]] TensorStyle tensor_style(std::string_view word, std::string_view pattern,
                                       std::string_view origin);

/// A pattern and its style. The pattern is the path of a module, or the end of it, in whole names; `*` stands
/// for one name: "layers.*.mlp.up_proj".
struct TensorRule {
  std::string pattern;
  std::string style;
};

/// Whether `pattern` is the end of the path `module`.
[[nodiscard]] bool matches_end(std::string_view pattern, std::string_view module);

struct TensorModule {
  std::string module;  ///< The path of the module.
  TensorStyle style;
};

/// What tensor parallelism does with the modules and parameters of a model.
struct TensorPlan {
  int size = 1;                       ///< The number of ranks that share a parameter.
  std::vector<TensorModule> modules;  ///< Those with a style, in the order of the model.
  /// The dimension by which each parameter of the structure is cut; absent for whole ones.
  std::vector<std::optional<std::size_t>> cuts;
  std::vector<bool> sums_gradient;  ///< The same for ParameterInfo::sums_gradient.

  [[nodiscard]] std::size_t cut_count() const;
  /// "15 of 21 parameters are cut among 2 ranks".
  [[nodiscard]] std::string summary() const;
};

/// Plans tensor parallelism among `size` ranks. The rules are those of the configuration, or if it has none,
/// those of the notes.
///
/// Throws Error (kUsage), which names the module and the rule: without rules, for a number of ranks that does
/// not suit the heads of the notes, for a style that does not exist
/// or does not suit the module, for a rule of the configuration that matches nothing, for two styles of one
/// module, for a dimension that `size` does not divide, for a tied parameter that is not cut alike under all
/// its names, for a parameter of an ignored module, and if no parameter is cut.
[[nodiscard]] TensorPlan plan_tensors(const ModelStructure& model,
                                      const std::map<std::string, std::string>& configured,
                                      const ModelNotes& notes, int size);

/// The model with the parts that the rank number `rank` of tensor parallelism has.
[[nodiscard]] ModelStructure with_tensor_parts(ModelStructure model, const TensorPlan& plan, int rank);

}  // namespace accel
