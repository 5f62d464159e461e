// Times all-gather and reduce-scatter of one tensor over ranks on this machine, Gloo and shared memory taking
// turns:
//
//   collectives-bench RANKS BYTES REPEAT PORT
//
// Each rank is a process with one thread, and Gloo's or the backend's own beside it. Prints one JSON object:
// for each collective and backend the seconds of each run, and whether the results were right.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "train/c10d/group.hpp"

namespace {

using accel::train::Group;

constexpr int kUsage = 2;

double seconds_of(Group& group, const std::function<void()>& collective) {
  group.barrier();
  const auto start = std::chrono::steady_clock::now();
  collective();
  group.barrier();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Returns rank 0's findings, and whether this rank saw the right numbers.
bool run_rank(int number, int ranks, std::int64_t bytes, int repeat, int port) {
  at::set_num_threads(1);
  accel::train::Rank rank;
  rank.rank = number;
  rank.world_size = rank.local_world_size = ranks;
  const std::int64_t part = bytes / 4 / ranks;
  const at::Tensor whole = at::empty({part * ranks});
  const at::Tensor mine = at::full({part}, static_cast<float>(number + 1));
  const at::Tensor gradient = at::full({part * ranks}, static_cast<float>(number + 1));
  const at::Tensor mean = at::empty({part});

  std::map<std::string, Group> groups;
  for (const auto& [name, backend] :
       {std::pair{"shm", accel::config::Backend::kShm}, {"gloo", accel::config::Backend::kGloo}}) {
    rank.master_port = port++;
    groups.emplace(name, Group::connect(rank, backend, at::kCPU));
  }
  nlohmann::json seconds;
  bool right = true;
  // The first round touches the memory.
  for (int round = -1; round < repeat; ++round) {
    for (auto& [name, group] : groups) {
      const double gather = seconds_of(group, [&] { group.all_gather(whole, mine).wait(); });
      const double scatter = seconds_of(group, [&] { group.reduce_scatter_mean(mean, gradient).wait(); });
      for (int of = 0; of < ranks; ++of)
        right = right && whole[(of + 1) * part - 1].item<float>() == static_cast<float>(of + 1);
      right = right && mean[part - 1].item<float>() == static_cast<float>(ranks + 1) / 2;
      if (round < 0) continue;
      seconds["all-gather"][name].push_back(gather);
      seconds["reduce-scatter"][name].push_back(scatter);
    }
  }
  if (number == 0)
    fmt::print("{}\n",
               nlohmann::json{{"ranks", ranks}, {"bytes", part * 4 * ranks}, {"seconds", seconds}}.dump());
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    fmt::print(stderr, "usage: collectives-bench RANKS BYTES REPEAT PORT\n");
    return kUsage;
  }
  const int ranks = std::atoi(argv[1]);
  // Forked before libtorch starts any thread.
  std::vector<pid_t> others;
  int number = 0;
  for (int other = 1; other < ranks && number == 0; ++other) {
    const pid_t child = ::fork();
    if (child == 0) number = other;
    if (child > 0) others.push_back(child);
  }
  bool right = run_rank(number, ranks, std::atoll(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]));
  std::fflush(nullptr);
  if (number != 0) ::_exit(right ? 0 : 1);
  for (const pid_t child : others) {
    int status = 0;
    ::waitpid(child, &status, 0);
    right = right && status == 0;
  }
  if (!right) fmt::print(stderr, "collectives-bench: wrong results\n");
  ::_exit(right ? 0 : 1);
}
