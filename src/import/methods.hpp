#pragma once

#include <string>
#include <vector>

#include "import/graph.hpp"
#include "import/module_tree.hpp"

namespace accel {

/// Writes the methods of all modules of `tree`: one for each call of a module, `forward` for the first and
/// `forward_1` and so on for the others. The method of the root checks the sizes of the inputs against those
/// for which the program was exported. Returns the places of operators that draw random numbers in either
/// mode. Throws Error (kFailure) that names what is not imported.
std::vector<std::string> write_methods(const ExportedGraph& graph, const nlohmann::json& program,
                                       ModuleTree& tree);

}  // namespace accel
