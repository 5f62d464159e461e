#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "core/config/optimizers.hpp"
#include "core/config/value.hpp"

namespace accel::config {

/// A group of training.optimizer.groups from its section. Throws an Error of kind kUsage without context that
/// names what is wrong.
ParameterGroup group_of(const Texts& section);

/// A group as an object of the resolved configuration, with the names of the YAML file.
nlohmann::json json_of(const ParameterGroup& group);
/// Throws an Error of kind kUsage that names `where`.
ParameterGroup group_from_json(const nlohmann::json& document, const std::string& where);

}  // namespace accel::config
