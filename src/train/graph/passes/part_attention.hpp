#pragma once

#include <torch/csrc/jit/api/module.h>

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace accel::train {

/// Whether modules give a part of the last dimension of what they compute, by path. A module that is not in
/// it is what those in it are, and whole if one of them is.
using GivesPart = std::unordered_map<std::string, bool>;

/// What `gives_part` says of a module; nothing if there is none of its modules in it.
std::optional<bool> part_given_by(const std::string& module, const GivesPart& gives_part);

/// Makes each attention of the model a call of kModuleAttention (replace_attention.hpp). Returns, by module,
/// the AttentionCall::number of each attention that may drop something and whose query is a part of the
/// heads.
///
/// A query is a part if a module that `gives_part` maps to true computes it, or what it is computed from, and
/// no module that `gives_part` maps to false is in between. A query that comes from elsewhere
/// than the method of the attention counts as whole: what a method gets, or a loop hands on. Call before the
/// first run, and before methods are rewritten (rewrite.hpp).
std::unordered_map<std::string, std::vector<std::int64_t>> find_part_attention(const torch::jit::Module& root,
                                                                               const GivesPart& gives_part);

}  // namespace accel::train
