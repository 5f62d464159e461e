#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ckpt/read/layouts.hpp"

namespace accel::ckpt {

/// A part of a checkpoint, by its key or keys, and how much is in it.
struct LayoutPart {
  std::string name;
  std::size_t tensors = 0;
  std::size_t objects = 0;
};

/// Whether the objects among the weights are taken.
enum class Objects { kTaken, kLeftOut };

/// What is left out of a checkpoint, in its order.
[[nodiscard]] std::vector<LayoutPart> left_out_parts(const Checkpoint& checkpoint, const Layout& layout,
                                                     Objects objects);

/// The parts for people, in one line: "'app.optim' (18 tensors, 90 objects), 'epoch' and 3 more".
[[nodiscard]] std::string to_string(const std::vector<LayoutPart>& parts);

}  // namespace accel::ckpt
