// The rendezvous of a run on many machines, on the loopback:
//
//   rendezvous-bench serve MACHINES PORT     is machine 0: await_members() and send_welcome()
//   rendezvous-bench arrive MACHINES PORT    is the launchers of all other machines
//
// The launchers are connections of one process and speak the whole protocol, with the proofs of a secret.
// Like real ones they come again 200 ms after a connection that has failed. Each side prints one JSON object.

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/files/fd.hpp"
#include "core/launch/cluster/authentication.hpp"
#include "core/launch/cluster/rendezvous_messages.hpp"
#include "core/launch/cluster/rendezvous_parameters.hpp"
#include "core/launch/cluster/rendezvous_server.hpp"
#include "process_usage.hpp"

namespace {

using namespace accel::launch;
using accel::Fd;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr auto kConnectTime = std::chrono::seconds(3);
constexpr auto kHandshakeTime = std::chrono::seconds(30);
constexpr auto kPause = std::chrono::milliseconds(200);

RendezvousParameters parameters_of(int machine, int machines, int port) {
  accel::config::Config config;
  config.training.emplace();
  config.launch.machine_rank = machine;
  config.launch.num_machines = config.launch.num_processes = machines;
  config.launch.local_processes = 1;
  config.launch.main_process_ip = "127.0.0.1";
  config.launch.main_process_port = port;
  config.launch.rendezvous_timeout_s = 600;
  config.launch.run_id = "slurm-4711.0.0";
  RendezvousParameters parameters =
      rendezvous_parameters(config, {}, "0.1.0 (0123456789ab)", fmt::format("node{:05}", machine));
  parameters.min_machines = machines;
  parameters.secret = "0123456789abcdef0123456789abcdef";
  return parameters;
}

void serve(int machines, int port) {
  const RendezvousParameters parameters = parameters_of(0, machines, port);
  const bench::Usage before = bench::usage();
  Members members = await_members(parameters);
  Welcome welcome;
  welcome.num_machines = welcome.num_processes = machines;
  welcome.master_port = 29501;
  welcome.run_id = "20261125-120000-0123abcd";
  send_welcome(members, parameters, welcome);
  bench::print_usage(before);
  static_cast<void>(std::getchar());  // The connections stay until the other side has counted their bytes.
}

/// A launcher that looks for machine 0.
struct Launcher {
  Fd socket = {};
  bool is_connected = false;
  Handshake handshake = {};
  std::string in = {};
  Clock::time_point deadline = {};  ///< When it gives up, or comes again if it has no socket.
};

/// The launchers of all machines but the first.
class Arrivals {
 public:
  Arrivals(int machines, int port)
      : parameters_(parameters_of(1, machines, port)),
        join_(join_to_json(parameters_)),
        launchers_(static_cast<std::size_t>(machines - 1)),
        missing_(machines - 1) {
    address_.sin_family = AF_INET;
    address_.sin_port = htons(static_cast<std::uint16_t>(port));
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  }

  void run() {
    const std::int64_t begin_ns = bench::now_ns();
    for (std::size_t i = 0; i < launchers_.size(); ++i) {
      connect(i);
      if (i % 16 == 15) serve(0);
    }
    Clock::time_point next_look = Clock::now();
    while (missing_ > 0) {
      serve(20);
      if (Clock::now() < next_look) continue;
      next_look = Clock::now() + std::chrono::milliseconds(20);
      for (std::size_t i = 0; i < launchers_.size(); ++i) look_at_time(i);
    }
    std::vector<int> sockets;
    for (const Launcher& launcher : launchers_) sockets.push_back(launcher.socket.get());
    bench::print_arrivals(begin_ns, sockets, again_);
  }

 private:
  void connect(std::size_t i) {
    Launcher& launcher = launchers_[i];
    launcher = {Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0))};
    launcher.deadline = Clock::now() + kConnectTime;
    // Each 256 machines have an address of their own, as one has too few ports for many that come again.
    const int on = 1;
    ::setsockopt(launcher.socket.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    sockaddr_in own{};
    own.sin_family = AF_INET;
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1 + static_cast<std::uint32_t>(i / 256));
    ::bind(launcher.socket.get(), reinterpret_cast<const sockaddr*>(&own), sizeof own);
    if (::connect(launcher.socket.get(), reinterpret_cast<const sockaddr*>(&address_), sizeof address_) !=
            0 &&
        errno != EINPROGRESS)
      return come_again(launcher);
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT;
    event.data.u64 = i;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, launcher.socket.get(), &event);
  }

  void come_again(Launcher& launcher) {
    ++again_;
    launcher.socket.reset();
    launcher.deadline = Clock::now() + kPause;
  }

  void look_at_time(std::size_t i) {
    Launcher& launcher = launchers_[i];
    if (Clock::now() < launcher.deadline) return;
    launcher.socket ? come_again(launcher) : connect(i);
  }

  void serve(int wait_ms) {
    std::array<epoll_event, 256> events{};
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), wait_ms);
    for (int i = 0; i < count; ++i) take(events.at(static_cast<std::size_t>(i)));
  }

  void take(const epoll_event& event) {
    Launcher& launcher = launchers_[event.data.u64];
    if (!launcher.is_connected && (event.events & (EPOLLERR | EPOLLHUP)) != 0) return come_again(launcher);
    if (!launcher.is_connected) {
      launcher.is_connected = true;
      launcher.deadline = Clock::now() + kHandshakeTime;
      epoll_event reads = event;
      reads.events = EPOLLIN;
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, launcher.socket.get(), &reads);
    }
    if ((event.events & EPOLLIN) == 0) return;
    std::array<char, 8192> bytes;
    const ssize_t size = ::recv(launcher.socket.get(), bytes.data(), bytes.size(), 0);
    if (size < 0 && errno == EAGAIN) return;
    if (size <= 0) return come_again(launcher);
    launcher.in.append(bytes.data(), static_cast<std::size_t>(size));
    for (std::size_t end = 0; (end = launcher.in.find('\n')) != std::string::npos;) {
      const json message =
          json::parse(launcher.in.begin(), launcher.in.begin() + static_cast<std::ptrdiff_t>(end));
      launcher.in.erase(0, end + 1);
      answer(message, launcher, static_cast<int>(event.data.u64) + 1);
    }
  }

  void answer(const json& message, Launcher& launcher, int machine) {
    if (message.contains("refused")) throw std::runtime_error(message.at("refused").get<std::string>());
    if (message.contains("challenge")) {
      launcher.handshake = {message.at("challenge"), new_nonce(), parameters_.version, parameters_.run_id};
      send(launcher,
           {{"hello", to_json(Hello{parameters_.version, parameters_.run_id,
                                    fmt::format("node{:05}", machine), launcher.handshake.nonce,
                                    proof_of(parameters_.secret, Role::kMember, launcher.handshake)})}});
      launcher.deadline = Clock::now() + kHandshakeTime;
    } else if (message.contains("accepted")) {
      if (!is_proof(message.at("accepted").get<std::string>(), parameters_.secret, Role::kServer,
                    launcher.handshake))
        throw std::runtime_error("machine 0 has not proved that it knows the secret");
      join_["machine_rank"] = machine;
      send(launcher, {{"join", join_}});
      launcher.deadline = Clock::time_point::max();
    } else if (message.contains("welcome")) {
      RendezvousParameters own = parameters_;
      own.machine_rank = machine;
      static_cast<void>(welcome_from_json(message.at("welcome"), own));
      --missing_;
    }
  }

  static void send(Launcher& launcher, const json& message) {
    const std::string text = message.dump() + "\n";
    if (::send(launcher.socket.get(), text.data(), text.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(text.size()))
      throw std::runtime_error("a message does not fit into the socket");
  }

  RendezvousParameters parameters_;
  json join_;
  std::vector<Launcher> launchers_;
  int missing_;
  int again_ = 0;
  Fd epoll_{::epoll_create1(EPOLL_CLOEXEC)};
  sockaddr_in address_{};
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  try {
    const int machines = std::atoi(argv[2]);
    const int port = std::atoi(argv[3]);
    std::string(argv[1]) == "serve" ? serve(machines, port) : Arrivals(machines, port).run();
    return 0;
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
}
