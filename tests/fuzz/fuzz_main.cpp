// One libFuzzer program a target; the build says which.

#include <cstddef>
#include <cstdint>

#include "targets.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  accel::fuzz::run_target(ACCEL_FUZZ_TARGET, std::as_bytes(std::span(data, size)));
  return 0;
}
