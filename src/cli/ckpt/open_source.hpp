#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/read/checkpoint.hpp"
#include "ckpt/read/layout_parts.hpp"

namespace accel::cli {

/// Opens the checkpoint `path`, or the checkpoint of a model in the directory `path`. In a directory it logs
/// which checkpoint that is ("merging '...'" if `doing` is "merging"), and which others were not taken.
/// Throws what find_checkpoint and open_checkpoint throw, and Error (kMissing) if the directory has only the
/// checkpoint of an optimizer.
[[nodiscard]] std::unique_ptr<ckpt::Checkpoint> open_source(const std::string& path, std::string_view doing);

/// Logs one line about what a command leaves out of `source`, if `parts` are not empty.
void say_what_is_left_out(const ckpt::Checkpoint& source, const std::vector<ckpt::LayoutPart>& parts);

}  // namespace accel::cli
