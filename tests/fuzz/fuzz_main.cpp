// The libFuzzer program of one target. The build defines which.

#include <cstddef>
#include <cstdint>

#include "targets.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  accel::fuzz::run_target(ACCEL_FUZZ_TARGET, std::as_bytes(std::span(data, size)));
  return 0;
}
