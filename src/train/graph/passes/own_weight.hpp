#pragma once

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>

#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

namespace accel::train {

/// Calls `visit` for the code of each method of a class.
void for_each_method(const c10::ClassType& type, const std::function<void(torch::jit::Graph&)>& visit);

/// Whether a value in a method of the module `self` is the module's own `weight`.
bool is_own_weight(const torch::jit::Value* value, const torch::jit::Value* self);

/// The arguments, behind `self`, of what takes the place of a node in a method of the module `self`; empty
/// for a node that stays.
using ArgumentsOf =
    std::function<std::vector<torch::jit::Value*>(torch::jit::Node* node, const torch::jit::Value* self)>;

/// Replaces nodes in the methods of each module in `modules`, which are paths, by calls of the operator `op`,
/// whose first argument is the module. Instances that share the class share the change. Returns the paths of
/// the modules in whose methods there was no such node.
std::vector<std::string> replace_with_module_operator(const torch::jit::Module& root,
                                                      const std::unordered_set<std::string>& modules,
                                                      const char* op, const ArgumentsOf& arguments_of);

/// A use of the own `weight` in the methods of a class for which `is_allowed` is false; null if there is
/// none.
const torch::jit::Node* other_use_of_weight(const c10::ClassType& type,
                                            const std::function<bool(const torch::jit::Use&)>& is_allowed);

}  // namespace accel::train
