// collectives BACKEND DEVICE END: runs each collective of Group on the ranks that `accel launch` starts, and
// compares the results with what the ranks' numbers make. BACKEND is nccl, gloo or shm, and DEVICE is gpu or
// cpu. END is shut_down, as after a training, or destroy, as after an error, where NCCL aborts its
// communicators.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "core/config/names.hpp"
#include "train/c10d/group.hpp"
#include "train/device/accelerator.hpp"

namespace accel::train {
namespace {

constexpr std::int64_t kElems = 5;

void require_equal(const std::string& what, const at::Tensor& found, const at::Tensor& expected) {
  const at::Tensor numbers = found.to(at::kCPU, at::kDouble);
  if (!numbers.equal(expected.to(at::kDouble)))
    throw std::runtime_error(
        fmt::format("{}: expected {}, found {}", what, at::str(expected), at::str(numbers)));
  fmt::print("{}\n", what);
}

at::Tensor filled(double value, std::int64_t elems = kElems) { return at::full({elems}, value, at::kDouble); }

/// Rank r has the numbers r + 1, so the ranks' sum is n * (n + 1) / 2 and their mean (n + 1) / 2. It sends
/// r + 1 + n * s to rank s. All of these are exact in bfloat16 for up to 16 ranks.
void run_collectives(Group& group, at::Device device, at::ScalarType dtype) {
  const double own = group.rank() + 1;
  const double ranks = group.size();
  const double sum = ranks * (ranks + 1) / 2;
  const at::TensorOptions options = at::TensorOptions().dtype(dtype).device(device);
  const auto name = [&](const char* collective) {
    return fmt::format("{} {}", collective, at::toString(dtype));
  };
  std::vector<at::Tensor> of_all, sent, received;
  for (int rank = 0; rank < group.size(); ++rank) {
    of_all.push_back(filled(rank + 1));
    sent.push_back(filled(own + ranks * rank));
    received.push_back(filled(rank + 1 + ranks * group.rank()));
  }

  at::Tensor whole = at::zeros({kElems * group.size()}, options);
  const at::Tensor part = at::zeros({kElems}, options);
  group.all_gather(whole, filled(own).to(options)).wait();
  require_equal(name("all_gather"), whole, at::cat(of_all));
  whole.fill_(own);
  group.reduce_scatter_mean(part, whole).wait();
  require_equal(name("reduce_scatter_mean"), part, filled(sum / ranks));
  group.reduce_scatter_sum(part, whole).wait();
  require_equal(name("reduce_scatter_sum"), part, filled(sum));
  part.fill_(own);
  group.all_reduce_mean(part).wait();
  require_equal(name("all_reduce_mean"), part, filled(sum / ranks));
  part.fill_(own);
  group.all_reduce_sum(part).wait();
  require_equal(name("all_reduce_sum"), part, filled(sum));
  part.fill_(own);
  group.all_reduce_max(part).wait();
  require_equal(name("all_reduce_max"), part, filled(ranks));
  group.all_to_all(whole, at::cat(sent).to(options)).wait();
  require_equal(name("all_to_all"), whole, at::cat(received));
  part.fill_(own);
  group.broadcast(part);
  require_equal(name("broadcast"), part, filled(1));
  std::vector<at::Tensor> parts;
  if (group.rank() == 0) {
    for (const at::Tensor& numbers : of_all) parts.push_back(numbers.to(options));
  }
  group.scatter(part, parts);
  require_equal(name("scatter"), part, filled(own));
}

void run_all(const std::string& backend, const std::string& device_name, const std::string& end) {
  const Rank rank = Rank::from_environment();
  at::Device device = at::kCPU;
  if (device_name == "gpu") device = load_accelerator(rank.local_rank);
  Group group = Group::connect(rank, config::enum_named<config::Backend>(backend).value(), device);
  if (group.backend_name() != backend)
    throw std::runtime_error(fmt::format("the backend is {}", group.backend_name()));
  run_collectives(group, device, at::kFloat);
  run_collectives(group, device, at::kBFloat16);
  std::vector<double> values = {1, group.rank() + 1.0};
  group.all_reduce_sum(values);
  require_equal("all_reduce_sum of the host's numbers", at::tensor(values, at::kDouble),
                at::tensor({1.0 * group.size(), group.size() * (group.size() + 1) / 2.0}, at::kDouble));
  const std::vector<std::byte> bytes(static_cast<std::size_t>(group.rank()) + 3, std::byte{7});
  if (group.broadcast_bytes(bytes) != std::vector<std::byte>(3, std::byte{7}))
    throw std::runtime_error("broadcast_bytes: these are not rank 0's");
  const auto gathered = group.all_gather_bytes(bytes);
  for (std::size_t i = 0; i < gathered.size(); ++i) {
    if (gathered[i] != std::vector<std::byte>(i + 3, std::byte{7}))
      throw std::runtime_error(fmt::format("all_gather_bytes: these are not rank {}'s", i));
  }
  group.barrier();
  if (end == "shut_down") group.shut_down();
  fmt::print("{}\n", end);
}

}  // namespace
}  // namespace accel::train

int main(int count, char** arguments) {
  try {
    if (count != 4) throw std::runtime_error("usage: collectives BACKEND DEVICE shut_down|destroy");
    accel::train::run_all(arguments[1], arguments[2], arguments[3]);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "collectives: {}\n", error.what());
    return 1;
  }
}
