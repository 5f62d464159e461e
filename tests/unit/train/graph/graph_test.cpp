#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

#include <string>
#include <vector>

#include "base/error.hpp"
#include "train/graph/analysis/cross_unit_reads.hpp"
#include "train/graph/passes/rewrite.hpp"
#include "train/graph/run/run_unit.hpp"
#include "train/graph/tensors.hpp"
#include "train/model/model_file.hpp"

namespace accel::train {
namespace {

using torch::jit::Module;

/// Records each call as "before <number of tensors in the arguments>" and "after <number in the result>".
class Recorder final : public UnitHooks {
 public:
  void before_call(std::span<const c10::IValue> arguments) override { note("before", arguments); }
  void after_call(std::span<const c10::IValue> /*arguments*/, const c10::IValue& result) override {
    note("after", {&result, 1});
  }
  [[nodiscard]] std::string name() const override { return "recorder"; }
  std::vector<std::string> calls;

 private:
  void note(const char* what, std::span<const c10::IValue> values) {
    int tensors = 0;
    for (const c10::IValue& value : values) for_each_tensor(value, [&](const at::Tensor&) { ++tensors; });
    calls.push_back(what + std::string(" ") + std::to_string(tensors));
  }
};

Module linear(const std::string& class_name) {
  Module module(class_name);
  module.register_parameter("weight", at::full({2}, 3.0), false);
  module.define("def forward(self, x):\n  return x * self.weight\n");
  return module;
}

at::Tensor run(Module& module, const at::Tensor& x) { return module.forward({x}).toTensor(); }

TEST(RewriteTest, HooksSeeEveryCallAndTheResultIsTheSame) {
  Module unit = linear("Unit");
  Module root("Root");
  root.register_module("unit", unit);
  root.define("def forward(self, x):\n  return self.unit.forward(self.unit.forward(x)) + 1\n");
  rewrite_methods(unit);
  Recorder recorder;
  const UnitRegistration registration({{unit._ivalue().get(), &recorder}});
  EXPECT_TRUE(at::equal(run(root, at::ones({2})), at::full({2}, 10.0)));
  EXPECT_EQ(recorder.calls, (std::vector<std::string>{"before 1", "after 1", "before 1", "after 1"}));
}

TEST(RewriteTest, ArgumentsAndResultsOfAnyTypePass) {
  Module unit("Awkward");
  unit.define(R"(
def forward(self, pair: Tuple[Tensor, List[Tensor]], table: Dict[str, Tensor], mask: Optional[Tensor], flag: bool = True) -> Tuple[Tensor, Optional[Tensor]]:
  first, rest = pair
  total = first + table["a"]
  for item in rest:
    total = total + item
  if mask is not None:
    if flag:
      return total * mask, mask
  return total, None
)");
  Module root("Root");
  root.register_module("unit", unit);
  root.define(R"(
def forward(self, x):
  a, m = self.unit.forward((x, [x, x]), {"a": x}, None)
  b, n = self.unit.forward((x, [x]), {"a": x}, x * 2)
  if n is not None:
    b = b + n
  return a + b
)");
  const at::Tensor before = run(root, at::ones({1}));
  Module fresh = root.clone();  // Its classes are new, and none of them has run.
  Module inner = fresh.attr("unit").toModule();
  rewrite_methods(inner);
  Recorder recorder;
  const UnitRegistration registration({{inner._ivalue().get(), &recorder}});
  EXPECT_TRUE(at::equal(run(fresh, at::ones({1})), before));
  EXPECT_EQ(recorder.calls, (std::vector<std::string>{"before 4", "after 1", "before 4", "after 2"}));
}

TEST(RewriteTest, InstancesOfOneClassShareTheRewriteButNotTheHooks) {
  Module first = linear("Shared");
  Module second = first.deepcopy();
  ASSERT_EQ(first.type(), second.type());
  rewrite_methods(first);
  rewrite_methods(second);
  Recorder recorder;
  const UnitRegistration registration({{second._ivalue().get(), &recorder}});
  EXPECT_TRUE(at::equal(run(first, at::ones({2})), at::full({2}, 3.0)));
  EXPECT_TRUE(recorder.calls.empty());
  run(second, at::ones({2}));
  EXPECT_EQ(recorder.calls.size(), 2u);
}

TEST(RewriteTest, MethodsOtherThanForwardAreHookedToo) {
  Module unit = linear("Encoder");
  unit.define("def encode(self, x):\n  return self.forward(x) - 1\n");
  rewrite_methods(unit);
  Recorder recorder;
  const UnitRegistration registration({{unit._ivalue().get(), &recorder}});
  EXPECT_TRUE(at::equal(unit.run_method("encode", at::ones({2})).toTensor(), at::full({2}, 2.0)));
  EXPECT_EQ(recorder.calls.size(), 4u);
}

TEST(RunUnitTest, OnlyOneModelAtATime) {
  Module unit = linear("Once");
  Recorder recorder;
  const UnitRegistration registration({{unit._ivalue().get(), &recorder}});
  EXPECT_THROW(UnitRegistration({{unit._ivalue().get(), &recorder}}), Error);
}

TEST(CrossUnitReadsTest, FindsReadsPastAUnitsBoundary) {
  Module inner = linear("Inner");
  Module unit("Unit2");
  unit.register_parameter("own", at::ones({2}), false);
  unit.register_parameter("peeked", at::ones({2}), false);
  unit.register_module("inner", inner);
  unit.define("def forward(self, x):\n  return self.inner.forward(x) * self.own * self.peeked\n");
  Module root("Root2");
  root.register_module("unit", unit);
  root.define("def forward(self, x):\n  return self.unit.forward(x) + self.unit.peeked\n");
  const auto found = cross_unit_reads(root, {"unit"});
  EXPECT_EQ(found.size(), 1u);
  EXPECT_TRUE(found.contains(unit.attr("peeked").toTensor().unsafeGetTensorImpl()));
  EXPECT_TRUE(cross_unit_reads(root, {}).empty());
}

TEST(CrossUnitReadsTest, CallingASubmoduleOfAUnitCountsToo) {
  Module inner = linear("Inner3");
  Module unit("Unit3");
  unit.register_module("inner", inner);
  unit.define("def forward(self, x):\n  return self.inner.forward(x)\n");
  Module root("Root3");
  root.register_module("unit", unit);
  root.define("def forward(self, x):\n  return self.unit.inner.forward(x)\n");
  const auto found = cross_unit_reads(root, {"unit"});
  EXPECT_TRUE(found.contains(inner.attr("weight").toTensor().unsafeGetTensorImpl()));
  // If the inner module is a unit, too, its call announces the read.
  EXPECT_TRUE(cross_unit_reads(root, {"unit", "unit.inner"}).empty());
}

}  // namespace
}  // namespace accel::train
