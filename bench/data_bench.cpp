// Reads training batches as a rank does, and does nothing with them:
//
//   data-bench FILE LENGTH BATCH BATCHES     FILE is a .npy of tokens
//
// Prints the seconds until the first batch, the seconds of the others, and the sum of all tokens modulo 2^64
// as JSON.

#include <fmt/format.h>

#include <cstdlib>
#include <exception>
#include <string>

#include "process_usage.hpp"
#include "train/loop/batches.hpp"

namespace {

using namespace accel::train;

std::uint64_t sum_of(const Batch& batch) {
  return static_cast<std::uint64_t>(batch.field("input_ids").sum().item<std::int64_t>());
}

void read(const std::string& file, std::int64_t length, std::int64_t batch_size, std::int64_t count) {
  const std::int64_t begin_ns = bench::now_ns();
  accel::config::DataConfig config;
  config.train = {"tokens", file, length};
  config.batch_size = batch_size;
  TrainingBatches batches(config, {}, 1, DataParallel{}, at::kCPU);
  std::uint64_t sum = sum_of(batches.next());
  const std::int64_t first_ns = bench::now_ns();
  for (std::int64_t i = 1; i < count; ++i) sum += sum_of(batches.next());
  fmt::print(R"({{"first_s": {:.6f}, "rest_s": {:.6f}, "sum": {}}})"
             "\n",
             static_cast<double>(first_ns - begin_ns) / 1e9,
             static_cast<double>(bench::now_ns() - first_ns) / 1e9, sum);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 5) {
    fmt::print(stderr, "usage: data-bench FILE LENGTH BATCH BATCHES\n");
    return 2;
  }
  read(argv[1], std::atoll(argv[2]), std::atoll(argv[3]), std::atoll(argv[4]));
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
