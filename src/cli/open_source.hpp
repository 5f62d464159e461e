#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "ckpt/read/checkpoint.hpp"

namespace accel::cli {

/// Opens the checkpoint `path`, or the checkpoint of a model in the directory `path`. In a directory it logs
/// which checkpoint that is ("merging '...'" if `doing` is "merging"), and which others were not taken.
/// Throws what find_checkpoint and open_checkpoint throw, and Error (kMissing) if the directory has only the
/// checkpoint of an optimizer.
[[nodiscard]] std::unique_ptr<ckpt::Checkpoint> open_source(const std::string& path, std::string_view doing);

}  // namespace accel::cli
