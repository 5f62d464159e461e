#include "train/model/weight_source.hpp"

#include <fmt/format.h>

#include "base/error.hpp"
#include "train/model/checkpoint_weights.hpp"
#include "train/model/initial_weights.hpp"
#include "train/model/model_file.hpp"

namespace accel::train {
namespace {

/// The values in the model file.
class FileWeights final : public WeightSource {
 public:
  explicit FileWeights(const ModelFile& file) : file_(file) {}

  void read_parameter(std::size_t index, std::int64_t begin, std::span<std::byte> out) override {
    file_.read_parameter(index, begin, out);
  }
  // The values of buffers are in the module already.
  bool read_buffer(const std::string& /*name*/, const std::vector<std::int64_t>& /*shape*/,
                   ckpt::DType /*dtype*/, std::span<std::byte> /*out*/) override {
    return false;
  }

 private:
  const ModelFile& file_;
};

}  // namespace

std::unique_ptr<WeightSource> open_weights(const ModelFile& file, const ModelStructure& structure,
                                           const WeightOptions& options) {
  if (!options.path.empty())
    return std::make_unique<CheckpointWeights>(structure, options.path, options.needs_buffers);
  if (options.init_std) return std::make_unique<InitialWeights>(structure, *options.init_std, options.seed);
  if (const auto empty = file.parameter_without_values()) {
    throw Error(ErrorKind::kUsage, fmt::format("the model file has no values for '{}'",
                                               structure.parameters[*empty].fqns.front()))
        .hint(
            "set training.model.weights to a checkpoint or safetensors file to read them from, or "
            "training.model.init.std to draw random values");
  }
  return std::make_unique<FileWeights>(file);
}

}  // namespace accel::train
