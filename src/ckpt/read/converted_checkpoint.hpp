#pragma once

#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/name_pattern.hpp"
#include "ckpt/read/checkpoint.hpp"
#include "ckpt/tensor/tensor_conversion.hpp"

namespace accel::ckpt {

/// A pattern, and what takes the place of each of its matches in a name.
using PatternRename = std::pair<NamePattern, std::string>;

/// The names of a checkpoint's tensors, without the root key of the state dict.
[[nodiscard]] std::set<std::string> tensor_names(const Checkpoint& checkpoint);

/// The conversions that give `names` other names: all rules apply in their order, each to what the one before
/// has made. Throws Error (kUsage) if two names become one, or if a pattern matches nothing. `origin` says in
/// the message where the rules come from.
[[nodiscard]] std::vector<TensorConversion> conversions_by_pattern(const std::set<std::string>& names,
                                                                   std::span<const PatternRename> rules,
                                                                   std::string_view origin);

/// Those of `conversions` that apply to a checkpoint with these `names`. The names may be those of the
/// converted tensors already: none applies unless a name is there that only tensors have that are to be
/// converted. Then a tensor is converted if all that it consists of is there, and left as it is if nothing of
/// it is there. Throws Error (kMissing) if a part of it is there.
[[nodiscard]] std::vector<TensorConversion> applicable(std::vector<TensorConversion> conversions,
                                                       const std::set<std::string>& names);

/// `checkpoint` with the tensors that `conversions` name in place of those that they consist of. No bytes are
/// read for it. Throws Error (kUsage) if a tensor is missing, if the dtypes or the shapes of the tensors do
/// not fit, and if two tensors would have one name.
[[nodiscard]] std::unique_ptr<Checkpoint> convert_tensors(std::unique_ptr<Checkpoint> checkpoint,
                                                          std::vector<TensorConversion> conversions);

/// `checkpoint` with the tensors of a model whose notes have this text of `weight_conversions`. Throws Error
/// (kUsage) if the text is malformed, and what applicable() and convert_tensors() throw.
[[nodiscard]] std::unique_ptr<Checkpoint> with_tensors_of_model(std::unique_ptr<Checkpoint> checkpoint,
                                                                std::string_view conversions);

}  // namespace accel::ckpt
