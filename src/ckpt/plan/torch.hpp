#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/plan/output_plan.hpp"
#include "ckpt/plan/weight_files.hpp"
#include "ckpt/torch/archive.hpp"

namespace accel::ckpt {

/// Appends a torch.save archive to `file` at `offset`. `storages` has the content of each of its storages.
void append_torch_archive(OutputFile& file, std::uint64_t offset, const TorchArchive& archive,
                          std::vector<OutputContent> storages);

/// Plans one torch.save archive with all of `state`, as torch.save(state_dict) writes it. Paths become nested
/// dicts. A level whose keys are the integers 0 to n - 1 becomes a list, unless it is in `state.dicts` or is
/// called `state` and stands beside `param_groups`, as in an optimizer's state dict. Tied items share a
/// storage. The root of the archive is the stem of `name`.
///
/// Throws Error (kFailure) if torch.load(weights_only=True) would refuse objects (see unsafe_part), if a path
/// is both a value and a dict, or if a path is too deep.
[[nodiscard]] OutputFile plan_torch_file(std::string name, const OutputState& state);

/// Plans torch.save archives under the names that transformers uses. There are several files and an index
/// only if the tensors take more than `max_shard_bytes` (0: no limit). A tied tensor goes into the file of
/// the tensor that it is tied to, and shares its storage. Objects go into the first file. Throws what
/// plan_torch_file throws.
[[nodiscard]] OutputPlan plan_torch_files(const OutputState& state, const WeightFiles& names,
                                          std::uint64_t max_shard_bytes);

}  // namespace accel::ckpt
