#pragma once

#include <ATen/core/ivalue.h>

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "plan/memory/prefetch_schedule.hpp"
#include "ranks/collective_order.hpp"
#include "train/c10d/mesh_groups.hpp"
#include "train/fsdp/buffers/reduce_queue.hpp"

namespace accel::train {

/// The state that the units of one model share during a step.
struct StepState {
  StepState(const MeshGroups& groups, int prefetch_depth) : prefetch(prefetch_depth), reduces(groups) {}

  PrefetchSchedule prefetch;
  /// The units that are being recomputed in backward at this moment, the outermost first.
  std::vector<const PrefetchUnit*> recomputing;
  bool expects_backward = false;  ///< The forward under way, or the last one, has grad.
  bool reduce = true;  ///< Whether this backward ends with the gradients reduced (false while accumulating).
  ReduceQueue reduces;
  CollectiveOrder collectives;
  /// Gets the result of each call of a unit, unless it is empty.
  std::function<void(const std::string& unit, const c10::IValue& result)> on_result;
  std::exception_ptr failure;  ///< The first Error of a call, to be rethrown to the caller of the model.
};

}  // namespace accel::train
