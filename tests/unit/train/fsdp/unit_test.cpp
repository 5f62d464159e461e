#include "train/fsdp/unit.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "late_storage.hpp"
#include "lonely_backend.hpp"

namespace accel::train {
namespace {

/// One of two ranks. The other one does not exist, and each of them seems to have what this one has. A weight
/// of 4 x 4 elements fills this rank's shard, so that it is the whole weight.
class UnitTest : public ::testing::Test {
 protected:
  static UnitPlan plan(const std::string& module = "layer") {
    return {.module = module, .class_name = "Block"};
  }

  /// A unit with the parameter `weight`.
  std::unique_ptr<Unit> make_unit(const UnitPlan& plan, const Unit::Options& options, bool trainable = true) {
    std::vector<std::unique_ptr<FlatBuffer>> buffers;
    buffers.push_back(std::make_unique<FlatBuffer>(
        make_flat_layout({{{"weight"}, {4, 4}}}, 4, groups_.mesh()), BufferDtypes::all(at::kFloat), trainable,
        BufferPool::make(at::kCPU, /*poison=*/true), StorageDevice::beside(at::kCPU)));
    at::Tensor(buffers[0]->shard()).copy_(at::randn({16}));
    return std::make_unique<Unit>(plan, torch::jit::Module("Block")._ivalue(), std::move(buffers), options,
                                  groups_, step_);
  }
  std::unique_ptr<Unit> make_unit(const Unit::Options& options = {}) { return make_unit(plan(), options); }

  static FlatBuffer& buffer(const Unit& unit) { return *unit.buffers()[0]; }
  static bool is_unsharded(const Unit& unit) { return buffer(unit).is_unsharded(); }
  static at::Tensor weight_of(const Unit& unit) { return buffer(unit).shard().view({4, 4}).clone(); }
  static at::Tensor gradient_of(const Unit& unit) { return buffer(unit).gradient().view({4, 4}); }

  /// Calls the unit: tanh(x @ weight), and `inside` before the end of the call.
  static at::Tensor call(Unit& unit, const at::Tensor& x, const std::function<void()>& inside = {}) {
    const std::array<c10::IValue, 1> arguments = {x};
    unit.before_call(arguments);
    at::Tensor y = at::tanh(x.matmul(buffer(unit).parameters()[0]));
    if (inside) inside();
    unit.after_call(arguments, y);
    return y;
  }

  void finish_backward(Unit& unit) {
    unit.finish_backward();
    step_.reduces.finish();
  }

  Group world_ = Group::over(c10::make_intrusive<LonelyBackend>(0, 2), at::kCPU);
  MeshGroups groups_ = lonely_groups(world_);
  StepState step_{groups_, /*prefetch_depth=*/1};
  at::Tensor x_ = at::randn({3, 4});
};

/// The gradient of the sum of tanh(x @ weight).
at::Tensor plain_gradient(const at::Tensor& x, const at::Tensor& value) {
  const at::Tensor weight = value.clone().requires_grad_();
  at::tanh(x.matmul(weight)).sum().backward();
  return weight.grad();
}

TEST_F(UnitTest, IsGatheredDuringACallAlone) {
  const auto unit = make_unit();
  EXPECT_FALSE(is_unsharded(*unit));
  const at::Tensor y = call(*unit, x_, [&] { EXPECT_TRUE(is_unsharded(*unit)); });
  EXPECT_TRUE(y.equal(at::tanh(x_.matmul(weight_of(*unit)))));
  EXPECT_FALSE(is_unsharded(*unit));
  EXPECT_EQ(unit->calls(), 1);
}

TEST_F(UnitTest, StaysGatheredForABackwardIfThePlanOrTheOptionsSaySo) {
  UnitPlan head = plan();
  head.stays_gathered = true;
  for (const auto& unit : {make_unit({.reshard_after_forward = false}), make_unit(head, {})}) {
    call(*unit, x_);
    EXPECT_TRUE(is_unsharded(*unit));
    unit->reshard();
    const at::NoGradGuard no_grad;  // No backward follows.
    call(*unit, x_);
    EXPECT_FALSE(is_unsharded(*unit));
  }
}

TEST_F(UnitTest, BackwardGathersItAgainFreesItAndStartsItsReduction) {
  const auto unit = make_unit();
  const at::Tensor y = call(*unit, x_);
  bool was_unsharded = false;
  // Runs behind the unit's own hook, before the backward of tanh.
  y.register_hook([&](const at::TensorBase&) { was_unsharded = is_unsharded(*unit); });
  y.sum().backward();
  EXPECT_TRUE(was_unsharded);
  EXPECT_FALSE(is_unsharded(*unit));
  EXPECT_TRUE(buffer(*unit).gradient().defined());
  EXPECT_FALSE(buffer(*unit).parameters()[0].grad().defined());
  finish_backward(*unit);
  EXPECT_TRUE(at::allclose(gradient_of(*unit), plain_gradient(x_, weight_of(*unit))));
}

TEST_F(UnitTest, WithReduceLateTheReductionWaitsForTheEndOfBackward) {
  const auto unit = make_unit({.reduce_late = true});
  call(*unit, x_).sum().backward();
  EXPECT_FALSE(buffer(*unit).gradient().defined());
  finish_backward(*unit);
  EXPECT_TRUE(at::allclose(gradient_of(*unit), plain_gradient(x_, weight_of(*unit))));
}

TEST_F(UnitTest, GradientsOfMicroBatchesAddUpUntilOneReduces) {
  const auto unit = make_unit();
  const at::Tensor other = at::randn({2, 4});
  step_.reduce = false;
  unit->begin_micro_batch();
  call(*unit, x_).sum().backward();
  finish_backward(*unit);
  EXPECT_FALSE(is_unsharded(*unit));
  EXPECT_FALSE(buffer(*unit).gradient().defined());
  step_.reduce = true;
  unit->begin_micro_batch();
  call(*unit, other).sum().backward();
  finish_backward(*unit);
  const at::Tensor weight = weight_of(*unit);
  EXPECT_TRUE(at::allclose(gradient_of(*unit), plain_gradient(x_, weight) + plain_gradient(other, weight)));
}

/// Between the calls of a shared layer the unit is freed. All calls have one gradient in backward.
TEST_F(UnitTest, TwoCallsInAForwardHaveOneGradient) {
  const auto unit = make_unit();
  const at::Tensor y = call(*unit, call(*unit, x_));
  EXPECT_FALSE(is_unsharded(*unit));
  y.sum().backward();
  EXPECT_FALSE(is_unsharded(*unit));
  finish_backward(*unit);
  const at::Tensor weight = weight_of(*unit).requires_grad_();
  at::tanh(at::tanh(x_.matmul(weight)).matmul(weight)).sum().backward();
  EXPECT_TRUE(at::allclose(gradient_of(*unit), weight.grad()));
  EXPECT_EQ(unit->calls(), 2);
}

TEST_F(UnitTest, ACallInsideACallOfTheUnitFreesNothing) {
  const auto unit = make_unit({.recompute = true});
  call(*unit, x_, [&] {
    EXPECT_TRUE(unit->recomputes());
    EXPECT_TRUE(unit->owns(buffer(*unit).parameters()[0]));
    EXPECT_FALSE(unit->owns(x_));
    call(*unit, x_, [&] {
      // The outermost call is recomputed and frees the parameters.
      EXPECT_FALSE(unit->recomputes());
      EXPECT_FALSE(unit->owns(buffer(*unit).parameters()[0]));
    });
    EXPECT_TRUE(is_unsharded(*unit));
  });
  EXPECT_FALSE(is_unsharded(*unit));
  EXPECT_FALSE(unit->recomputes());
}

TEST_F(UnitTest, OnlyUnitsOfTheWrapPolicyAreRecomputed) {
  UnitPlan head = plan();
  head.checkpoints = false;
  const auto unit = make_unit(head, {.recompute = true});
  call(*unit, x_, [&] { EXPECT_FALSE(unit->recomputes()); });
}

TEST_F(UnitTest, DuringARecomputationItIsGatheredAndOffloadsNothing) {
  const auto unit =
      make_unit({.recompute = true, .activation_storage = std::make_shared<testing::LateStorage>()});
  EXPECT_NE(unit->saved_activations(), nullptr);
  EXPECT_EQ(make_unit()->saved_activations(), nullptr);
  unit->before_recompute();
  EXPECT_TRUE(is_unsharded(*unit));
  EXPECT_EQ(unit->saved_activations(), nullptr);
  ASSERT_EQ(step_.recomputing.size(), 1U);
  EXPECT_EQ(step_.recomputing[0], unit.get());
  unit->after_recompute();
  EXPECT_TRUE(step_.recomputing.empty());
  EXPECT_NE(unit->saved_activations(), nullptr);
}

/// A frozen unit is done when its inputs have their gradients.
TEST_F(UnitTest, AFrozenUnitIsFreedInBackwardAndHasNoGradient) {
  const auto unit = make_unit(plan(), {}, /*trainable=*/false);
  x_.requires_grad_();
  call(*unit, x_).sum().backward();
  EXPECT_FALSE(is_unsharded(*unit));
  finish_backward(*unit);
  EXPECT_FALSE(buffer(*unit).gradient().defined());
  const at::Tensor x = x_.detach().requires_grad_();
  at::tanh(x.matmul(weight_of(*unit))).sum().backward();
  EXPECT_TRUE(at::allclose(x_.grad(), x.grad()));
}

/// Units inside the root run in backward after it, and may read its parameters.
TEST_F(UnitTest, TheRootIsFreedAtTheEndOfBackward) {
  UnitPlan root = plan("");
  root.stays_gathered = true;
  const auto unit = make_unit(root, {});
  call(*unit, x_).sum().backward();
  EXPECT_TRUE(is_unsharded(*unit));
  finish_backward(*unit);
  EXPECT_FALSE(is_unsharded(*unit));
}

TEST_F(UnitTest, AUnitToWhichNoBackwardComesReducesZeros) {
  const auto unit = make_unit({.reshard_after_forward = false});
  call(*unit, x_);
  finish_backward(*unit);
  EXPECT_FALSE(is_unsharded(*unit));
  EXPECT_TRUE(gradient_of(*unit).eq(0).all().item<bool>());
  EXPECT_EQ(buffer(*unit).has_gradient(), std::vector<bool>{false});
}

TEST_F(UnitTest, ACallThatAnExceptionHasEndedIsForgotten) {
  const auto unit = make_unit({.recompute = true});
  const std::array<c10::IValue, 1> arguments = {x_};
  unit->before_call(arguments);
  unit->begin_micro_batch();
  call(*unit, x_, [&] { EXPECT_TRUE(unit->recomputes()); });
  EXPECT_FALSE(is_unsharded(*unit));
}

TEST_F(UnitTest, AParameterThatACallChangesInPlaceIsAnError) {
  const auto unit = make_unit();
  const at::NoGradGuard no_grad;
  try {
    call(*unit, x_, [&] { buffer(*unit).parameters()[0].add_(1); });
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(error.message().find("'weight'"), std::string::npos) << error.message();
  }
}

TEST_F(UnitTest, TheFirstErrorOfAStepIsKept) {
  const auto unit = make_unit();
  for (const char* message : {"first", "second"})
    unit->failed(std::make_exception_ptr(Error(ErrorKind::kUsage, message)));
  try {
    std::rethrow_exception(step_.failure);
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "first");
  }
}

/// The parameters may outlive the unit, in a tensor that the model has kept.
TEST_F(UnitTest, LeavesNoHookOnItsParameters) {
  auto unit = make_unit();
  const at::Tensor weight = buffer(*unit).parameters()[0];
  unit->before_call(std::array<c10::IValue, 1>{x_});
  const at::Tensor sum = weight.sum();
  unit.reset();
  sum.backward();
  EXPECT_TRUE(weight.grad().eq(1).all().item<bool>());
}

/// Two ranks whose units gather or reduce in another order would mix their weights or gradients.
TEST_F(UnitTest, NotesTheOrderOfGathersAndReductions) {
  const auto a = make_unit(plan("a"), {.reshard_after_forward = false});
  const auto b = make_unit(plan("b"), {.reshard_after_forward = false});
  const auto order = [&](const std::array<Unit*, 2>& forwards, const std::array<Unit*, 2>& backwards) {
    step_.collectives = {};
    std::map<const Unit*, at::Tensor> outputs;
    for (Unit* unit : forwards) outputs[unit] = call(*unit, x_);
    for (Unit* unit : backwards) outputs[unit].sum().backward();
    for (Unit* unit : forwards) {
      finish_backward(*unit);
      buffer(*unit).clear_gradient();
    }
    return step_.collectives.take();
  };
  const std::array ab = {a.get(), b.get()};
  const std::array ba = {b.get(), a.get()};
  const double expected = order(ab, ab);
  EXPECT_EQ(order(ab, ab), expected);
  EXPECT_NE(order(ba, ab), expected);
  EXPECT_NE(order(ab, ba), expected);
}

c10::IValue nested(const at::Tensor& floats, const at::Tensor& integers) {
  return c10::ivalue::Tuple::create({floats, c10::List<at::Tensor>({floats, integers}), 3});
}

std::vector<at::ScalarType> dtypes_in(const c10::IValue& value) {
  const auto& elements = value.toTupleRef().elements();
  const auto list = elements[1].toTensorVector();
  return {elements[0].toTensor().scalar_type(), list[0].scalar_type(), list[1].scalar_type()};
}

TEST_F(UnitTest, FloatingArgumentsAndResultsAreCastAlsoInContainers) {
  const auto unit = make_unit({.argument_dtype = at::kBFloat16, .result_dtype = at::kHalf});
  const c10::IValue value = nested(x_, at::ones({2}, at::kLong));
  EXPECT_EQ(dtypes_in(unit->cast_argument(value)), (std::vector{at::kBFloat16, at::kBFloat16, at::kLong}));
  EXPECT_EQ(dtypes_in(unit->cast_result(value)), (std::vector{at::kHalf, at::kHalf, at::kLong}));
  EXPECT_EQ(dtypes_in(value), (std::vector{at::kFloat, at::kFloat, at::kLong}));
  // An argument that has the dtype is the same object: the method may change a list in place.
  const c10::IValue cast = nested(x_.to(at::kBFloat16), at::ones({2}, at::kLong));
  EXPECT_TRUE(unit->cast_argument(cast).is(cast));
  const auto plain = make_unit();
  EXPECT_TRUE(plain->cast_argument(value).is(value));
  EXPECT_TRUE(plain->cast_result(value).is(value));
}

TEST_F(UnitTest, TheLossThatTheRootReturnsIsNotCast) {
  const Unit::Options options{.result_dtype = at::kBFloat16};
  const auto root = make_unit(plan(""), options);
  const auto layer = make_unit(plan(), options);
  const at::Tensor loss = at::full({}, 1.0F / 3);
  EXPECT_EQ(root->cast_result(loss).toTensor().scalar_type(), at::kFloat);
  EXPECT_EQ(root->cast_result(x_).toTensor().scalar_type(), at::kBFloat16);
  EXPECT_EQ(layer->cast_result(loss).toTensor().scalar_type(), at::kBFloat16);
}

}  // namespace
}  // namespace accel::train
