#include "train/optim/gradient_presence.hpp"

#include <algorithm>
#include <cstddef>

namespace accel::train {

GradientPresence gradient_presence(const std::vector<FlatBuffer*>& buffers) {
  GradientPresence presence;
  presence.reserve(buffers.size());
  for (const FlatBuffer* buffer : buffers) presence.push_back(buffer->has_gradient());
  return presence;
}

std::int64_t count_missing(const GradientPresence& presence) {
  std::int64_t missing = 0;
  for (const std::vector<bool>& buffer : presence) missing += std::count(buffer.begin(), buffer.end(), false);
  return missing;
}

GradientPresence on_any_rank(GradientPresence own, Group& group) {
  std::vector<double> ranks;  // The number of ranks with the gradient.
  for (const std::vector<bool>& buffer : own) {
    for (const bool is_there : buffer) ranks.push_back(is_there ? 1 : 0);
  }
  group.all_reduce_sum(ranks);
  std::size_t next = 0;
  for (std::vector<bool>& buffer : own) {
    for (std::size_t i = 0; i < buffer.size(); ++i) buffer[i] = ranks[next++] > 0;
  }
  return own;
}

}  // namespace accel::train
