#pragma once

#include "ckpt/convert/merge.hpp"
#include "ckpt/read/checkpoint.hpp"
#include "ckpt/write/commit.hpp"
#include "cli/command_line.hpp"

namespace accel::cli {

/// A merge that will be, or has been, done; borrows all of its parts.
struct MergeReport {
  const ckpt::MergePlan& plan;
  ckpt::Checkpoint& source;
  const ckpt::OutputTarget& target;
  double seconds = 0;
  bool verified = false;
  bool removed = false;
};

/// What would go where, as text or JSON.
void print_plan(const MergeReport& report, const Globals& globals);

/// What was written, as text or JSON.
void print_result(const MergeReport& report, const Globals& globals);

}  // namespace accel::cli
