#pragma once

#include <string>
#include <string_view>

namespace accel::machine {

/// What stands in place of a value whose shape is not known.
inline constexpr std::string_view kNotShown = "(set, not shown)";

/// The shapes that a value of the environment may have. Nothing that could hold a password, a key or a token
/// has one of them.
enum class Shape {
  kPlain,    ///< Numbers, sizes, times and the words of value_words.hpp, with separators: "LL,LL128", "4:2".
  kDevices,  ///< GPUs: "0,1", "all", "GPU-" or "MIG-" with a UUID.
  kInterfaces,  ///< Names or the beginnings of names of network devices: "eth0", "^lo,docker", "mlx5_0:1".
  kHost,        ///< One host name or numeric address, with or without a port.
  kHosts,       ///< A list of hosts as Slurm writes it: "node[01-03,7],login".
  kPath,        ///< A path.
  kPaths,       ///< Paths with colons between them. Those that do not have the shape of one are left out.
  kClasses,     ///< Names of classes of modules: "LlamaDecoderLayer,T5Block".
};

/// `value` if it has this shape or is empty, else kNotShown. Of a list of paths, each is looked at by itself.
[[nodiscard]] std::string shown(std::string_view value, Shape shape);

}  // namespace accel::machine
