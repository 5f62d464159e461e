#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/api/module.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/config/config.hpp"
#include "plan/layout/optimizer_plan.hpp"
#include "train/c10d/mesh_groups.hpp"
#include "train/device/storage_device.hpp"
#include "train/fsdp/buffer_broadcast.hpp"
#include "train/fsdp/buffers/load_shards.hpp"
#include "train/fsdp/cast_buffers.hpp"
#include "train/fsdp/compiled_layers.hpp"
#include "train/fsdp/linears/float8_linears.hpp"
#include "train/fsdp/linears/tensor_linears.hpp"
#include "train/fsdp/sequence_parallel.hpp"
#include "train/fsdp/unit.hpp"
#include "train/graph/passes/fuse_head.hpp"
#include "train/graph/run/autocast.hpp"
#include "train/graph/run/fused_head.hpp"
#include "train/model/model_file.hpp"
#include "train/model/open_weights.hpp"

namespace accel::train {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

struct ShardingOptions {
  config::FsdpConfig fsdp;
  config::OptimizerConfig optimizer;
  /// Set if linears compute in float8. It gathers in float8 only if `fsdp` is version 2 in mixed precision.
  std::optional<config::Float8Config> float8;
  std::optional<config::CompileConfig> compile;  ///< Set if layers run the compiled code of the model file.
  /// The plan of the configuration, if the mesh has several ranks along tp; empty for that of the model file.
  std::map<std::string, std::string> tp_plan;
  WeightOptions weights;
  /// Called when the units are built and the methods rewritten, before any value is read; may be empty.
  std::function<void()> on_wrapped;
  /// Where shards, gradients and the optimizer's state are stored, and where saved activations are. Null
  /// means what `fsdp` says: on the host or on the device that computes.
  std::shared_ptr<StorageDevice> storage = nullptr;
  std::shared_ptr<StorageDevice> activation_storage = nullptr;
  bool poison = false;             ///< The option of BufferPool, for tests.
  bool broadcast_buffers = false;  ///< Broadcast rank 0's buffers, as DistributedDataParallel does.
  config::DdpConfig ddp;           ///< Its communication hooks apply if there is one shard.
  /// The output of forward (ModelConfig::output) for whose last linear forward() may take a HeadFunction;
  /// unset for none.
  std::optional<std::string> head_output;
  std::vector<std::string> inputs;  ///< The names of forward's inputs, which sequence parallelism needs.
};

/// A TorchScript model whose parameters are sharded over the ranks of a mesh: what fully_shard does in
/// Python.
///
/// Every rank reads only the bytes of its own shard, or gets them from rank 0, and keeps only its shard. The
/// modules gather their parameters when they run. Construction, forward() and finish_backward() are
/// collective: all ranks call them in the same order.
class ShardedModel {
 public:
  /// Shards over the ranks of `world`, in as many replicas as the options say. `world` must outlive the
  /// model. A world size that is not a multiple of the replicas is an Error of kind kUsage.
  ShardedModel(ModelFile file, const ShardingOptions& options, at::Device device, Group& world);
  /// Shards over existing groups.
  ShardedModel(ModelFile file, const ShardingOptions& options, at::Device device, MeshGroups groups);
  ShardedModel(const ShardedModel&) = delete;
  ShardedModel& operator=(const ShardedModel&) = delete;
  ~ShardedModel();

  /// Runs the model's forward, under autocast if the options say so. Under at::GradMode a backward may
  /// follow, and finish_backward() must.
  ///
  /// With sequence parallelism the inputs are the whole ones, and this rank computes its part of their
  /// sequences: the result is of that part.
  c10::IValue forward(std::vector<c10::IValue> inputs) { return forward(std::move(inputs), {}); }
  /// The same with `head` in place of the last linear, if head() is found and `head` is not empty. It gets
  /// this rank's part of weight and bias if there are head_ranks().
  c10::IValue forward(std::vector<c10::IValue> inputs, const HeadFunction& head);
  /// With sequence parallelism, runs a short piece of the inputs whole and in parts, without gradients. If
  /// what attentions get, or the tensor that `output_of` takes from a result, differs by more than rounding,
  /// that is an Error of kind kUsage on every rank. Later calls do nothing. The modes of modules are those of
  /// the root afterwards; buffers and random states are what they were. Call it outside of a micro-batch.
  void compare_parts(std::vector<c10::IValue> inputs,
                     const std::function<at::Tensor(const c10::IValue&)>& output_of);
  /// Must be called before each forward that a backward follows. With `reduce` false the gradients stay
  /// unsharded and are accumulated.
  void begin_micro_batch(bool reduce);
  void finish_backward();
  /// Drops the gradients after the optimizer has used them.
  void clear_gradients();
  /// Resets the communication hooks. Called instead of the optimizer's step if a gradient is infinite or NaN.
  void reset_hook_state();
  void set_training(bool training);
  /// Calls `on_result` with the result of each call of a unit from now on, unless it is empty.
  void watch_results(std::function<void(const std::string& unit, const c10::IValue& result)> on_result) {
    step_.on_result = std::move(on_result);
  }
  /// The numbers of PrefetchSchedule over all steps so far.
  [[nodiscard]] int gathered_ahead() const { return step_.prefetch.gathered_ahead(); }
  [[nodiscard]] int most_unsharded() const { return step_.prefetch.most_unsharded(); }

  /// The linear that a HeadFunction can replace, or why there is none.
  [[nodiscard]] const FoundHead& head() const { return head_; }
  /// The ranks that have a part of the head's classes each, in their order; null if this rank has all.
  [[nodiscard]] Group* head_ranks() { return cuts_head_ ? &groups_.tp() : nullptr; }
  /// Null if each rank computes whole sequences.
  [[nodiscard]] const SequenceParallel* sequence() const { return sequence_.get(); }
  [[nodiscard]] const MeshGroups& groups() const { return groups_; }
  [[nodiscard]] const ModelStructure& structure() const { return structure_; }
  /// The optimizers for which the buffers are laid out.
  [[nodiscard]] const OptimizerPlan& optimizer_plan() const { return optimizer_plan_; }
  /// ModelNotes::weight_conversions of the model file.
  [[nodiscard]] const std::string& weight_conversions() const { return weight_conversions_; }
  /// ModelNotes::adapter_config of the model file.
  [[nodiscard]] const std::string& adapter_config() const { return adapter_config_; }
  [[nodiscard]] std::span<const std::unique_ptr<Unit>> units() const { return units_; }
  /// All flat buffers that have gradients, in the order of their units.
  [[nodiscard]] const std::vector<FlatBuffer*>& trainable_buffers() const { return trainable_buffers_; }
  /// Where shards, their gradients and the optimizer's state are.
  [[nodiscard]] const StorageDevice& storage() const { return *storage_; }
  /// Where unsharded parameters and gradients are.
  [[nodiscard]] BufferPool& pool() const { return *pool_; }
  /// The model's buffers by name (running statistics, ...), the same on every rank, without the
  /// non-persistent ones.
  [[nodiscard]] NamedTensors persistent_buffers() const;

  /// The linears of a model that computes in float8.
  [[nodiscard]] const std::optional<Float8Linears>& float8() const { return float8_; }

  /// Whether every forward uses rank 0's buffers, as with DistributedDataParallel.
  [[nodiscard]] bool broadcasts_buffers() const { return buffer_broadcast_.has_value(); }
  /// Copies values into the buffers of these names, of this rank alone.
  void set_persistent_buffers(const std::map<std::string, at::Tensor>& values);
  /// From where the hooks power_sgd draw their seeds.
  [[nodiscard]] NumpyRandom& hook_seeds() const { return *hook_seeds_; }

  /// CollectiveOrder::take() of the step. It must be the same on all ranks.
  [[nodiscard]] double take_collective_order() { return step_.collectives.take(); }

 private:
  std::vector<ShardTarget> build_units(const ModelFile& file, const ShardingOptions& options);
  /// Makes linears and embeddings compute with their parts. A head whose output is a part, or a sum, is not
  /// replaced.
  void use_tensor_plan(const TensorPlan& plan);
  /// Makes linears compute in float8, and says which. A head that does is not replaced.
  void use_float8(const config::Float8Config& config, const ModelStructure& model);
  /// Replaces every tensor in an attribute of a module, alone or in a list, tuple or dict, by its
  /// `replacement`, and moves the other tensors to the device. `owners` are the modules of the units that own
  /// the parameters. A container that holds a parameter of a unit outside that unit is an Error of kind
  /// kUsage.
  void put_in_place(const std::unordered_map<const at::TensorImpl*, std::string>& owners,
                    std::unordered_map<const at::TensorImpl*, at::Tensor>& replacement);
  /// Switches autocast off in modules that must run without it. Units do so themselves.
  void switch_autocast_off(const std::unordered_map<std::string, torch::jit::Module>& modules,
                           std::unordered_map<const c10::ivalue::Object*, UnitHooks*>& hooks);
  /// Gives layers that are not units their compiled code.
  void add_compiled_modules(const std::unordered_map<std::string, torch::jit::Module>& modules,
                            std::unordered_map<const c10::ivalue::Object*, UnitHooks*>& hooks);
  void load(const ModelFile& file, const WeightOptions& options, const std::vector<ShardTarget>& targets);
  void load_buffers(WeightSource& weights) const;
  c10::IValue run(std::vector<c10::IValue> inputs, const HeadFunction& head);
  /// Rethrows the Error of a call that the interpreter has replaced.
  [[noreturn]] void rethrow_failure();

  torch::jit::Module module_;
  at::Device device_;
  ModelStructure structure_;
  std::vector<std::string> non_persistent_;
  std::string weight_conversions_;
  std::string adapter_config_;
  FoundHead head_{"", "it was not looked for"};
  bool cuts_head_ = false;  ///< Whether the head is found, and cut by classes.
  std::string dtype_hint_;  ///< Hint for an operator's error about inputs of two dtypes; may be empty.
  std::shared_ptr<BufferPool> pool_;
  std::shared_ptr<StorageDevice> storage_;
  MeshGroups groups_;
  OptimizerPlan optimizer_plan_;
  std::unique_ptr<SequenceParallel> sequence_;
  bool parts_compared_ = false;
  StepState step_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<FlatBuffer*> trainable_buffers_;
  std::vector<FlatBuffer*> float8_buffers_;  ///< Those that are gathered in float8.
  std::optional<AutocastState> autocast_;    ///< The autocast of forward, if any.
  std::vector<std::unique_ptr<WithoutAutocast>> without_autocast_;
  CompiledBodies compiled_;  ///< The layers with compiled code. Those that are units have theirs there.
  std::vector<std::unique_ptr<CompiledModule>> compiled_modules_;
  CastBuffers cast_buffers_;
  std::shared_ptr<NumpyRandom> hook_seeds_;
  std::optional<Float8Linears> float8_;
  std::optional<TensorLinears> tensor_linears_;
  std::optional<UnitRegistration> registration_;
  std::optional<BufferBroadcast> buffer_broadcast_;
};

}  // namespace accel::train
