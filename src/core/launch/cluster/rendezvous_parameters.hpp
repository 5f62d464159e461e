#pragma once

#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "core/launch/cluster/rendezvous.hpp"

namespace accel::launch {

/// What this machine brings to the rendezvous. The settings are those of the resolved configuration that all
/// machines must share, by key, and the name of `program`, if it is not empty.
[[nodiscard]] RendezvousParameters rendezvous_parameters(const config::Config& config,
                                                         const std::vector<std::string>& program,
                                                         const std::string& version, const std::string& host);

}  // namespace accel::launch
