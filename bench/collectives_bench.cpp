// Times all-gather and reduce-scatter of one tensor over ranks on this machine, Gloo and shared memory taking
// turns:
//
//   collectives-bench RANKS BYTES REPEAT PORT
//
// Each rank is a process with one thread, and Gloo's or the backend's own beside it. Prints one JSON object:
// for each collective and backend the seconds of each run, and whether the results were right.
//
//   collectives-bench strings RANKS BYTES REPEAT PORT
//
// Times how all ranks, or rank 0 alone, get a string of BYTES bytes of every rank through the store. Prints
// for both, and for no string at all, the seconds until all ranks go on and the keys that stay in the store.

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
#include <numeric>
#include <string>
#include <vector>

#include "train/c10d/gather_object.hpp"
#include "train/c10d/group.hpp"
#include "train/c10d/run_store.hpp"

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

/// Returns whether this rank got the right number of strings.
bool run_strings(int number, int ranks, std::int64_t bytes, int repeat, int port) {
  constexpr std::chrono::minutes kTimeout(5);
  accel::train::Rank rank;
  rank.rank = number;
  rank.world_size = ranks;
  rank.master_port = port;
  const auto store = accel::train::join_store(rank, "collectives-bench");
  store->setTimeout(kTimeout);
  std::vector<int> members(static_cast<std::size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  const accel::train::StoreGather gathers(*store, number, members, kTimeout);
  const std::string text(static_cast<std::size_t>(bytes), 'x');
  nlohmann::json seconds;
  nlohmann::json keys;
  std::int64_t gather = 0;
  std::int64_t before = 0;
  std::string last;
  bool right = true;
  for (int round = -1; round < repeat; ++round) {
    for (const std::string name : {"nothing", "all_gather_object", "gather_object"}) {
      (void)gathers.gather(gather++, "");
      const std::string go = "go/" + std::to_string(gather);
      if (number == 0) {
        // The other ranks are waiting here, so the store has what the last turn left, and its `go`.
        const std::int64_t found = store->getNumKeys();
        if (!last.empty()) keys[last] = found - before - 1;
        before = found;
        last = name;
        store->set(go, "");
      }
      (void)store->get(go);
      const auto start = std::chrono::steady_clock::now();
      if (name == "all_gather_object")
        right = right && gathers.all_gather(gather, text).size() == members.size();
      if (name == "gather_object")
        right = right && (gathers.gather(gather, text).size() == members.size()) == (number == 0);
      ++gather;
      (void)gathers.gather(gather++, "");  // Rank 0 is behind it when all ranks are.
      if (round < 0 || number != 0) continue;
      seconds[name].push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
  }
  if (number == 0)
    fmt::print("{}\n", nlohmann::json{{"ranks", ranks}, {"seconds", seconds}, {"keys", keys}}.dump());
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  const bool is_of_strings = argc == 6 && std::string(argv[1]) == "strings";
  if (argc != 5 && !is_of_strings) {
    fmt::print(stderr, "usage: collectives-bench [strings] RANKS BYTES REPEAT PORT\n");
    return kUsage;
  }
  if (is_of_strings) ++argv;
  const int ranks = std::atoi(argv[1]);
  // Forked before libtorch starts any thread.
  std::vector<pid_t> others;
  int number = 0;
  for (int other = 1; other < ranks && number == 0; ++other) {
    const pid_t child = ::fork();
    if (child == 0) number = other;
    if (child > 0) others.push_back(child);
  }
  const auto run = is_of_strings ? run_strings : run_rank;
  bool right = run(number, ranks, std::atoll(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]));
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
