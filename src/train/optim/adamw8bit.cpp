#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "plan/layout/state_tensor.hpp"
#include "train/optim/update_rules.hpp"

namespace accel::train {
namespace {

/// How many elements are changed at a time: a number of whole blocks, so that the float32 values of larger
/// parts are never there at once.
constexpr std::int64_t kChunkElems = std::int64_t{1} << 20;
static_assert(kChunkElems % kBlockElems == 0);

/// The 256 values between -1 and 1, or between 0 and 1, for which codes stand, sorted: the dynamic map of
/// bitsandbytes and of torchao.optim.quant_utils.create_dynamic_map, by the same operations.
at::Tensor dynamic_map(bool is_signed, at::Device device) {
  constexpr int kExponents = 7;
  std::vector<at::Tensor> values = {at::tensor({0.0F, 1.0F})};
  for (int i = 0; i < kExponents; ++i) {
    const std::int64_t fractions = std::int64_t{1} << (is_signed ? i : i + 1);
    const at::Tensor boundaries = at::linspace(0.1, 1, fractions + 1);
    const at::Tensor means =
        boundaries.narrow(0, 0, fractions).add(boundaries.narrow(0, 1, fractions)).div_(2.0);
    const double power = std::pow(10.0, i + 1 - kExponents);
    values.push_back(means.mul(power));
    if (is_signed) values.push_back(means.mul(-power));
  }
  return std::get<0>(at::sort(at::cat(values))).to(device);
}

/// One moment of a chunk in 8 bits: codes [n] and scales [n / kBlockElems].
struct Codes {
  at::Tensor codes;
  at::Tensor scales;

  [[nodiscard]] at::Tensor values(const at::Tensor& map) const {
    const at::Tensor mapped = map.index_select(0, codes.to(at::kInt));
    return mapped.view({-1, kBlockElems}).mul_(scales.view({-1, 1})).view({-1});
  }
  /// Takes the code of the nearest value of the map; of two that are equally near, the larger.
  void store(const at::Tensor& values, const at::Tensor& map) const {
    constexpr double kLeastScale = 1e-12;
    const at::Tensor blocks = values.view({-1, kBlockElems});
    scales.copy_(blocks.abs().amax(-1).clamp_(kLeastScale));
    const at::Tensor scaled = blocks.div(scales.view({-1, 1})).view({-1});
    const std::int64_t last = map.numel() - 1;
    const at::Tensor below =
        at::bucketize(scaled, map, /*out_int32=*/true, /*right=*/true).sub_(1).clamp_(0, last);
    const at::Tensor above = below.add(1).clamp_(0, last);
    const at::Tensor value = map.index_select(0, below);
    const at::Tensor half = map.index_select(0, above).sub_(value).mul_(0.5);
    codes.copy_(at::where(scaled.sub(value).ge(half), above, below));
  }
};

/// The numbers of a step, in float32 as torchao has them.
struct StepNumbers {
  at::Tensor lr;
  at::Tensor correction1;
  at::Tensor correction2_root;
};

/// Changes a parameter's elements, given its moments before the step, and returns the new moments.
std::pair<at::Tensor, at::Tensor> change(const config::OptimizerOptions& options, const StepNumbers& numbers,
                                         const at::Tensor& parameter, const at::Tensor& gradient,
                                         const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq) {
  parameter.sub_(numbers.lr.mul(*options.weight_decay).mul(parameter));
  at::Tensor first = exp_avg.lerp(gradient, 1 - (*options.betas)[0]);
  at::Tensor second = exp_avg_sq.lerp(gradient.square(), 1 - (*options.betas)[1]);
  const at::Tensor root = second.sqrt().div_(numbers.correction2_root).add_(*options.eps);
  parameter.sub_(numbers.lr.mul(first.div(numbers.correction1)).div_(root));
  return {first, second};
}

}  // namespace

void update_adamw8bit(const OptimizerGroup& group, UpdateBatch& batch, double lr) {
  const config::OptimizerOptions& options = group.options;
  const at::Tensor steps = at::full({}, static_cast<double>(batch.steps), at::kFloat);
  const auto correction = [&](double beta) { return at::rsub(at::pow(beta, steps), 1); };
  const StepNumbers numbers{at::full({}, lr, at::kFloat), correction((*options.betas)[0]),
                            correction((*options.betas)[1]).sqrt_()};
  const bool has_codes = block_elems(group.tensors) != 1;
  const at::Device device = batch.parameters.front().device();
  const at::Tensor signed_map = has_codes ? dynamic_map(/*is_signed=*/true, device) : at::Tensor();
  const at::Tensor unsigned_map = has_codes ? dynamic_map(/*is_signed=*/false, device) : at::Tensor();
  for (std::size_t i = 0; i < batch.parameters.size(); ++i) {
    const std::int64_t numel = batch.parameters[i].numel();
    for (std::int64_t begin = 0; begin < numel; begin += kChunkElems) {
      const std::int64_t size = std::min(kChunkElems, numel - begin);
      const auto chunk = [&](const at::Tensor& part) { return part.narrow(0, begin, size); };
      const at::Tensor parameter = chunk(batch.parameters[i]);
      const at::Tensor gradient = chunk(batch.gradients[i]);
      if (!has_codes) {
        const at::Tensor exp_avg = chunk(batch.tensors[0][i]);
        const at::Tensor exp_avg_sq = chunk(batch.tensors[1][i]);
        const auto moments = change(options, numbers, parameter, gradient, exp_avg, exp_avg_sq);
        exp_avg.copy_(moments.first);
        exp_avg_sq.copy_(moments.second);
        continue;
      }
      const auto codes = [&](std::size_t tensor) {
        return Codes{chunk(batch.tensors[tensor][i]),
                     batch.tensors[tensor + 1][i].narrow(0, begin / kBlockElems, size / kBlockElems)};
      };
      const Codes exp_avg = codes(0);
      const Codes exp_avg_sq = codes(2);
      const auto moments = change(options, numbers, parameter, gradient, exp_avg.values(signed_map),
                                  exp_avg_sq.values(unsigned_map));
      exp_avg.store(moments.first, signed_map);
      exp_avg_sq.store(moments.second, unsigned_map);
    }
  }
}

}  // namespace accel::train
