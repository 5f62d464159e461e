#include "ckpt/pickle/document.hpp"

#include "ckpt/pickle/machine.hpp"

namespace accel::ckpt::pickle {

Document::Document(std::span<const std::byte> bytes) : graph_(run_machine(bytes)) {}

}  // namespace accel::ckpt::pickle
