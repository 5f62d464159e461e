// How long `.metadata` takes to be read and planned, and how much memory.
//
//   metadata-bench DIRECTORY
//
// Prints JSON: seconds for all of it, and for reading the file, parsing it, and checking that the chunks of
// every tensor tile it; the chunks; the peak of the process's memory.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/files/file.hpp"
#include "ckpt/dcp/parse_metadata.hpp"
#include "ckpt/tensor/box.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using namespace accel::ckpt;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Of this program alone, unlike getrusage, which counts what came before exec.
std::uint64_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::strtoull(line.c_str() + 6, nullptr, 10) * 1024;
  }
  return 0;
}

void measure(const std::filesystem::path& directory) {
  const Clock::time_point begin = Clock::now();
  const auto bytes = accel::read_whole_file(directory / ".metadata", std::uint64_t{1} << 33);
  const double read = seconds_since(begin);
  const DcpMetadata metadata = parse_dcp_metadata(bytes);
  const double parsed = seconds_since(begin);
  std::size_t chunks = 0;
  for (const DcpTensor& tensor : metadata.tensors) {
    check_tiling(tensor.chunks.boxes(), tensor.shape);
    chunks += tensor.chunks.size();
  }
  std::printf(
      R"({"seconds": %.3f, "read_s": %.3f, "parse_s": %.3f, "plan_s": %.3f, "chunks": %zu, "peak_bytes": %ju})"
      "\n",
      seconds_since(begin), read, parsed - read, seconds_since(begin) - parsed, chunks,
      static_cast<std::uintmax_t>(peak_bytes()));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    measure(argv[1]);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
