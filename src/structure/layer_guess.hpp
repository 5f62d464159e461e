#pragma once

#include <string>
#include <vector>

#include "structure/structure.hpp"

namespace accel {

/// A guess which classes are the layers of a model that does not name them, sorted; empty if nothing in the
/// model repeats.
///
/// The layers are the elements of the outermost lists: a ModuleList, or another module with at least two
/// children, where all children are of one class, have numbers as names, and have modules with parameters
/// inside. If there is no such list, the layers are of the class that has the most elements of parameters
/// among those that occur more than once, where the root, containers and modules inside another module of the
/// same class do not count.
[[nodiscard]] std::vector<std::string> guess_layer_classes(const ModelStructure& model);

}  // namespace accel
