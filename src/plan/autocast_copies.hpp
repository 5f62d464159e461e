#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>

#include "core/config/config.hpp"
#include "plan/buffer_plan.hpp"
#include "structure/structure.hpp"

namespace accel {

/// Of the copies in 16 bits that forward under autocast makes of parameters for matrix products and
/// convolutions, and that autograd keeps for backward. One that is trained is copied once, for autocast keeps
/// the copy for its next use; one that is frozen, once for each use.
///
/// Which parameters such an operator takes is not in a model's structure. All are counted that have another
/// dtype, but for those that are known to be left alone. So this errs upwards: by norms, and biases, whose
/// copies end with forward, which are both small; by frozen weights in front of all that is trained, whose
/// copies backward does not need; and by tables that their class does not give away. It is too little only
/// where code uses a parameter several times under one name and gets a copy each time: a frozen one, or a
/// view of one, as in `x @ self.weight.t()`.

/// The modules that are tables by their class: "...Embedding" and "EmbeddingBag".
[[nodiscard]] std::unordered_set<std::string> lookup_modules(const ModelStructure& model);

/// The names of parameters under which autocast leaves them alone: of batch norms, and `weight`, of two
/// dimensions, of a module that is a table, unless another module's code reads it from there. `model` has
/// these as cross_unit: it is the structure over lookup_modules().
[[nodiscard]] std::unordered_set<std::string> names_without_cast(const ModelStructure& model);

/// How many copies autocast makes of a parameter of the buffer, as far as its names tell; 0 without autocast,
/// and where it has its dtype already.
[[nodiscard]] std::int64_t autocast_copies(const BufferPlan& buffer, const FlatParameter& parameter,
                                           const core::PrecisionConfig& precision,
                                           const std::unordered_set<std::string>& names_without_cast);

/// Bytes of the copies of a buffer's parameters between forward and backward.
[[nodiscard]] std::uint64_t autocast_bytes(const BufferPlan& buffer, const core::PrecisionConfig& precision,
                                           const std::unordered_set<std::string>& names_without_cast);

}  // namespace accel
