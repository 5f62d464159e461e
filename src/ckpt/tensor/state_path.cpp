#include "ckpt/tensor/state_path.hpp"

namespace accel::ckpt {

std::string fqn_of(const StatePath& path) {
  std::string fqn;
  for (const PathKey& key : path) {
    if (&key != &path.front()) fqn += '.';
    if (const auto* name = std::get_if<std::string>(&key)) {
      fqn += *name;
    } else {
      fqn += std::to_string(std::get<std::int64_t>(key));
    }
  }
  return fqn;
}

}  // namespace accel::ckpt
