#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "ckpt/read/checkpoint.hpp"

namespace accel::cli {

/// Opens the checkpoint that `path` is, or the one of a model in the directory `path`, and says which one
/// that is ("merging '...'" with `doing` = "merging"), and which others were not taken. Throws Error, as
/// find_checkpoint and open_checkpoint do; kMissing if what was found in the directory is an optimizer's.
[[nodiscard]] std::unique_ptr<ckpt::Checkpoint> open_source(const std::string& path, std::string_view doing);

}  // namespace accel::cli
