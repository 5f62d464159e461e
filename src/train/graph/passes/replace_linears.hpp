#pragma once

#include <torch/csrc/jit/api/module.h>

#include <string>
#include <unordered_set>
#include <vector>

namespace accel::train {

/// Makes the product of each module in `modules`, which are paths, a call of kModuleLinear
/// (run/module_linear.hpp): every `aten::linear` with the module's own `weight`, in any of its methods. It
/// works on scripted, traced and imported models alike. Instances that share the class share the change,
/// which leaves their results as they are until LinearRegistration gives them a function.
///
/// Returns the paths in `modules` of which no method has such a product. The weight of such a module may be
/// used elsewhere, as torch.nn.MultiheadAttention uses that of `out_proj`. Call before the first run, and
/// before methods are rewritten (rewrite.hpp).
[[nodiscard]] std::vector<std::string> replace_linears(const torch::jit::Module& root,
                                                       const std::unordered_set<std::string>& modules);

/// The paths in `modules` whose own methods use their `weight` for something else than such a product. Call
/// after replace_linears().
[[nodiscard]] std::vector<std::string> modules_with_other_use(const torch::jit::Module& root,
                                                              const std::unordered_set<std::string>& modules);

/// The paths of the modules that have such a product with a `weight` of two dimensions, whatever their class
/// is called. Call before replace_linears().
[[nodiscard]] std::vector<std::string> modules_with_product(const torch::jit::Module& root);

}  // namespace accel::train
