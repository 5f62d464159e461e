#pragma once

#include <cstdint>

#include "ckpt/io/byte_source.hpp"

namespace accel::ckpt {

/// A CRC-32 of what a TorchScript archive computes: its code, the values of its modules' attributes that are
/// not tensors, and the constants of its code. Weights and buffers do not count, nor does whether the model
/// is in training mode, nor what another export of the same model differs in: the order of the
/// constants of a class, the numbers that torch puts into names of classes when it exports several models in
/// one process, in which files of the archive the classes are then, and how variables are numbered in these
/// files. Throws Error (kCorrupt) as TorchFile
/// does.
[[nodiscard]] std::uint32_t graph_fingerprint(ByteSource& archive);

}  // namespace accel::ckpt
