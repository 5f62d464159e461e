// What torch's TCPStore takes until all workers are there, on the loopback:
//
//   store-bench serve WORKERS PORT     is the store and its first worker, which waits for all of them
//   store-bench arrive WORKERS PORT    is all other workers
//
// The workers are connections of one process, made by eight threads, as one of them waits for each answer.
// Each side prints one JSON object, as rendezvous-bench does.

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "process_usage.hpp"
#include "train/c10d/numeric_names.hpp"

namespace {

using Store = c10::intrusive_ptr<c10d::TCPStore>;

Store store_of(int workers, int port, bool is_server) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = is_server;
  options.numWorkers = static_cast<std::size_t>(workers);
  options.timeout = std::chrono::minutes(10);
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

void serve(int workers, int port) {
  const bench::Usage before = bench::usage();
  const Store store = store_of(workers, port, true);
  bench::print_usage(before);
  static_cast<void>(std::getchar());  // The connections stay until the other side has counted their bytes.
}

std::vector<int> open_sockets() {
  std::vector<int> sockets;
  for (int fd = 0; fd < ::sysconf(_SC_OPEN_MAX); ++fd) {
    int type = 0;
    socklen_t size = sizeof type;
    if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0) sockets.push_back(fd);
  }
  return sockets;
}

void arrive(int workers, int port) {
  constexpr int kThreads = 8;
  const std::int64_t begin_ns = bench::now_ns();
  std::vector<std::vector<Store>> stores(kThreads);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int worker = 1 + thread; worker < workers; worker += kThreads)
        stores[static_cast<std::size_t>(thread)].push_back(store_of(workers, port, false));
    });
  }
  for (std::thread& thread : threads) thread.join();
  bench::print_arrivals(begin_ns, open_sockets(), 0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  try {
    const int workers = std::atoi(argv[2]);
    const int port = std::atoi(argv[3]);
    // Else the store asks DNS for the name of each worker, which takes seconds where no server answers.
    const accel::train::NumericNames numbers;
    std::string(argv[1]) == "serve" ? serve(workers, port) : arrive(workers, port);
    std::fflush(stdout);
    ::_exit(0);  // Thousands of stores end one after the other.
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
}
