#include "train/optim/equal_along_tp.hpp"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <span>
#include <string>

#include "base/error.hpp"
#include "train/optim/clip.hpp"

namespace accel::train {
namespace {

/// What rounding can do.
struct Bounds {
  double spread;  ///< The variance of a parameter's square sums over the ranks, by the square of their mean.
  double noise;   ///< A square sum by that of all parameters, below which a gradient may be rounding alone.
};

// On CPUs whole gradients are equal bit for bit, as long as ranks have as many threads. On other devices
// attention's backward adds in any order, in bfloat16 as well, whose numbers are 2^-8 apart. The gradient of
// a bias of keys is 0 but for rounding.
Bounds bounds_on(const at::Device& device) {
  return device.is_cpu() ? Bounds{1e-6, 1e-12} : Bounds{1e-3, std::ldexp(1.0, -16)};
}

[[noreturn]] void fail(const std::string& parameter, double spread, std::size_t others) {
  const std::string more = others == 0 ? "" : fmt::format(", and so do those of {} other parameters", others);
  throw Error(ErrorKind::kUsage,
              fmt::format("the gradient of '{}', which tensor parallelism does not cut, differs between its "
                          "ranks: the squares of its norm have a standard deviation of {:.2g} of their "
                          "mean{}",
                          parameter, spread, more))
      .hint(
          "give its module the style replicated_with_grad_allreduce in training.parallel.tp_plan, or leave "
          "the linears around it out of the plan");
}

}  // namespace

void require_equal_along_tp(const std::vector<FlatBuffer*>& buffers, const MeshGroups& groups) {
  Group& tp = groups.tp();
  if (tp.size() == 1) return;
  const at::NoGradGuard no_grad;
  std::vector<std::string> names;
  std::vector<Bounds> bounds;
  std::vector<double> own;  // The square sums of the parameters, then the squares of these.
  for (const FlatBuffer* buffer : buffers) {
    const FlatLayout& layout = buffer->layout();
    if (layout.is_tensor_cut()) continue;
    // Ranks along tp have the same shard, so that they have the same pieces.
    for (const ShardPiece& piece : pieces_of(layout, layout.is_replicated() ? 0 : groups.place().shard)) {
      const auto norm =
          norm_of(buffer->gradient().narrow(0, piece.shard_offset, piece.in_parameter.size())).item<double>();
      names.push_back(layout.parameters[piece.parameter].spec.fqns.front());
      bounds.push_back(bounds_on(buffer->compute_device()));
      own.push_back(norm * norm);
    }
  }
  const std::size_t count = names.size();
  for (std::size_t i = 0; i < count; ++i) own.push_back(own[i] * own[i]);
  tp.all_reduce_sum(own);
  double all = 0;
  for (const double sum : std::span(own).first(count)) all += sum;
  std::size_t found = 0, first = 0;
  double spread_of_first = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double sum = own[i];
    if (sum <= bounds[i].noise * all) continue;
    const double spread = (tp.size() * own[count + i] - sum * sum) / (sum * sum);
    if (spread <= bounds[i].spread) continue;
    if (found++ > 0) continue;
    first = i;
    spread_of_first = std::sqrt(spread);
  }
  if (found > 0) fail(names[first], spread_of_first, found - 1);
}

}  // namespace accel::train
