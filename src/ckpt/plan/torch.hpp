#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/plan/output_plan.hpp"
#include "ckpt/torch/archive.hpp"

namespace accel::ckpt {

/// What a segment is filled with.
using OutputContent = decltype(OutputSegment::content);

/// Appends a torch.save archive to `file` at `offset`; `storages` has the contents of each of its storages.
void append_torch_archive(OutputFile& file, std::uint64_t offset, const TorchArchive& archive,
                          std::vector<OutputContent> storages);

/// The content of a segment that is elements of `item`: all of it, or `boxes`.
[[nodiscard]] OutputContent content_of(const OutputItem& item, std::vector<Box> boxes = {});

/// Plans one torch.save archive with all of `state`, as torch.save(state_dict) writes it: nested dicts by
/// path, and lists where all keys of a level are the integers 0 to n - 1. Tied items share a storage. The
/// archive's root is the stem of `name`.
///
/// Throws Error (kFailure): if an object has something that torch.load(weights_only=True) refuses, which
/// names all of them (see unsafe_part); if a path is both a value and a dict; if paths are too deep.
[[nodiscard]] OutputFile plan_torch_file(std::string name, const OutputState& state);

}  // namespace accel::ckpt
