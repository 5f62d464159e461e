#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "ranks/mesh.hpp"
#include "train/loop/evaluate.hpp"
#include "train/loop/samples.hpp"

namespace accel::train {

/// The settings of a run that its numbers depend on, by key: config::number_settings(), and what stands for
/// others. The data counts by some of its tokens, so that files may move; the model by `graph`, its
/// fingerprint; the batch by the samples of all ranks together; the backend by the name of the one that the
/// ranks have.
[[nodiscard]] std::map<std::string, std::string> settings_of(const config::Config& config,
                                                             std::uint32_t graph, const Samples& data,
                                                             const std::vector<HeldOutSamples>& held_out,
                                                             const Mesh& mesh, const std::string& backend);

/// Whether a checkpoint has another fingerprint of the set of held-out data `set` than this run, so that the
/// losses of the two cannot be compared. False if one of them has no fingerprint of the set.
[[nodiscard]] bool has_other_held_out(const std::map<std::string, std::string>& in_checkpoint,
                                      const std::map<std::string, std::string>& now, const std::string& set);

}  // namespace accel::train
