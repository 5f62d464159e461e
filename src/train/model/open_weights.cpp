#include "train/model/open_weights.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "train/model/initial_weights.hpp"
#include "train/model/model_file.hpp"
#include "weights/checkpoint_weights.hpp"
#include "weights/weights_of_parts.hpp"

namespace accel::train {
namespace {

/// Elements that are converted at once.
constexpr std::int64_t kConverted = std::int64_t{1} << 20;

at::ScalarType scalar_type_of(const ParameterInfo& parameter) {
  return c10::getStringToDtypeMap().at(parameter.dtype);
}

/// The values in the model file.
class FileWeights final : public WeightSource {
 public:
  FileWeights(const ModelFile& file, const ModelStructure& structure) : file_(file), structure_(structure) {}

  void read_parameter(std::size_t index, std::int64_t begin, std::span<std::byte> out) override {
    const at::ScalarType from = file_.parameters()[index].scalar_type();
    const at::ScalarType to = scalar_type_of(structure_.parameters[index]);
    if (from == to) return file_.read_parameter(index, begin, out);
    const at::Tensor target = at::from_blob(
        out.data(), {static_cast<std::int64_t>(out.size() / c10::elementSize(to))}, at::TensorOptions(to));
    for (std::int64_t at = 0; at < target.numel(); at += kConverted) {
      const at::Tensor raw = at::empty({std::min(kConverted, target.numel() - at)}, at::TensorOptions(from));
      file_.read_parameter(index, begin + at,
                           {static_cast<std::byte*>(raw.mutable_data_ptr()), raw.nbytes()});
      target.narrow(0, at, raw.numel()).copy_(raw);
    }
  }
  // The values of buffers are in the module already.
  bool read_buffer(const std::string& /*name*/, const std::vector<std::int64_t>& /*shape*/,
                   ckpt::DType /*dtype*/, std::span<std::byte> /*out*/) override {
    return false;
  }

 private:
  const ModelFile& file_;
  const ModelStructure& structure_;
};

/// The values of a checkpoint that has no frozen parameters, and these from the model that it was trained on.
class AdapterWeights final : public WeightSource {
 public:
  /// With `is_certain` the caller checks that the base is that of the training.
  AdapterWeights(std::unique_ptr<CheckpointWeights> adapter, std::unique_ptr<WeightSource> base,
                 bool is_certain)
      : adapter_(std::move(adapter)), base_(std::move(base)), is_certain_(is_certain) {}

  void read_parameter(std::size_t index, std::int64_t begin, std::span<std::byte> out) override {
    if (adapter_->has_parameter(index)) return adapter_->read_parameter(index, begin, out);
    base_->read_parameter(index, begin, out);
  }
  bool read_buffer(const std::string& name, const std::vector<std::int64_t>& shape, ckpt::DType dtype,
                   std::span<std::byte> out) override {
    const bool in_adapter = adapter_->has_buffer(name);
    return in_adapter ? adapter_->read_buffer(name, shape, dtype, out)
                      : base_->read_buffer(name, shape, dtype, out);
  }
  [[nodiscard]] std::vector<std::string> warnings() const override {
    std::vector<std::string> texts = adapter_->warnings();
    if (!is_certain_)
      texts.emplace_back(
          "the checkpoint has no frozen weights; they are those with which this configuration begins");
    for (std::string& text : base_->warnings()) texts.push_back(std::move(text));
    return texts;
  }

 private:
  std::unique_ptr<CheckpointWeights> adapter_;
  std::unique_ptr<WeightSource> base_;
  bool is_certain_;
};

/// The values of whole parameters.
std::unique_ptr<WeightSource> open_whole(const ModelFile& file, const ModelStructure& structure,
                                         const WeightOptions& options) {
  if (!options.resumed.empty()) {
    using Use = CheckpointWeights::Use;
    auto resumed = std::make_unique<CheckpointWeights>(
        structure, options.resumed, options.resumes_adapter ? Use::kResumeAdapter : Use::kResume);
    resumed->note_in(options.resumed_sums);
    const bool has_frozen =
        std::any_of(structure.parameters.begin(), structure.parameters.end(),
                    [](const ParameterInfo& parameter) { return !parameter.requires_grad; });
    if (resumed->is_complete() && has_frozen && options.drops_frozen) {
      throw Error(
          ErrorKind::kUsage,
          fmt::format("'{}' has all weights; training.checkpoint.adapter_only cannot go on from it, because "
                      "its own checkpoints would lose the frozen ones",
                      options.resumed.string()))
          .hint(
              "go on without adapter_only, or begin a run in another output_dir with training.model.weights "
              "set to that checkpoint");
    }
    if (resumed->is_complete()) return resumed;
    WeightOptions base = options;
    base.resumed.clear();
    return std::make_unique<AdapterWeights>(std::move(resumed), open_whole(file, structure, base),
                                            options.resumes_adapter);
  }
  if (!options.path.empty()) {
    auto weights = std::make_unique<CheckpointWeights>(structure, options.path,
                                                       CheckpointWeights::Use::kBegin, options.names);
    weights->note_in(options.path_sums);
    return weights;
  }
  if (options.init_std) return std::make_unique<InitialWeights>(structure, *options.init_std, options.seed);
  if (const auto empty = file.parameter_without_values())
    throw error_of_missing_values(structure.parameters[*empty].fqns.front());
  return std::make_unique<FileWeights>(file, structure);
}

}  // namespace

std::unique_ptr<WeightSource> open_weights(const ModelFile& file, const ModelStructure& structure,
                                           const WeightOptions& options) {
  return std::make_unique<WeightsOfParts>(open_whole(file, structure, options), structure);
}

}  // namespace accel::train
