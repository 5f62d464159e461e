#include "ranks/collective_order.hpp"

#include <fmt/format.h>

#include "base/error.hpp"

namespace accel {

void require_one_order(double sum, double square_sum, int count, std::string_view when) {
  if (CollectiveOrder::are_equal(sum, square_sum, count)) return;
  throw Error(
      ErrorKind::kFailure,
      fmt::format("{}: the ranks gathered or reduced the model's units in different orders, which mixes "
                  "their weights or gradients: a unit runs, or gets a gradient, on some ranks only",
                  when))
      .hint(
          "every rank has to run the same units in each step: make the same random choices on all ranks, and "
          "let a branch that is not taken add 0 times its output");
}

}  // namespace accel
