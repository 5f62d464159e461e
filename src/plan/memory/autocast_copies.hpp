#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>

#include "core/config/config.hpp"
#include "plan/layout/buffer_plan.hpp"
#include "structure/structure.hpp"

namespace accel {

/// The 16-bit copies of parameters that forward under autocast makes for matrix products and convolutions,
/// and that autograd saves for backward. A trained parameter is copied once, because autocast caches the copy
/// for its next use. A frozen parameter is copied once for each use.
///
/// A model's structure does not tell which parameters are inputs of such operators. All parameters of another
/// dtype are counted, except those that are known not to be cast. The estimate is too high for norms and for
/// biases, whose copies end with forward, which are both small; for frozen weights before the first trained
/// parameter, whose copies backward does not need; and for tables that their class does not show. It is too
/// low only where code uses a parameter several times under one name and gets a copy each time: a frozen
/// parameter, or a view as in `x @ self.weight.t()`.

/// The modules that are lookup tables by their class: "...Embedding" and "EmbeddingBag".
[[nodiscard]] std::unordered_set<std::string> lookup_modules(const ModelStructure& model);

/// The names of parameters that autocast does not copy: the parameters of batch norms, and the
/// two-dimensional `weight` of a lookup table, unless the code of another module reads it. `model` must be
/// the structure with lookup_modules() as units, so that `cross_unit` marks such reads.
[[nodiscard]] std::unordered_set<std::string> names_without_cast(const ModelStructure& model);

/// How many copies autocast makes of a parameter of the buffer, as far as its names tell. 0 without autocast,
/// and if the parameter has the dtype of autocast already.
[[nodiscard]] std::int64_t autocast_copies(const BufferPlan& buffer, const FlatParameter& parameter,
                                           const config::PrecisionConfig& precision,
                                           const std::unordered_set<std::string>& names_without_cast);

/// Bytes of autocast's copies of a buffer's parameters between forward and backward.
[[nodiscard]] std::uint64_t autocast_bytes(const BufferPlan& buffer, const config::PrecisionConfig& precision,
                                           const std::unordered_set<std::string>& names_without_cast);

}  // namespace accel
