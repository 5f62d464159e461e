#include "core/launch/cluster/rendezvous.hpp"

#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "core/config/common_settings.hpp"
#include "core/launch/world/address.hpp"
#include "core/launch/world/port.hpp"

namespace accel::launch {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr auto kTick = std::chrono::milliseconds(200);
/// How long machine 0 may take to find the checkpoint to go on from.
constexpr auto kAnswerTime = std::chrono::seconds(60);
constexpr auto kHelloTime = std::chrono::seconds(10);
constexpr Seconds kBetweenWords{30};

/// When to say something while waiting.
class Progress {
 public:
  explicit Progress(const Party& party) : limit_(party.timeout_s), next_(party.first_word_s) {}

  [[nodiscard]] double seconds() const { return Seconds(Clock::now() - began_).count(); }
  [[nodiscard]] bool is_over() const { return seconds() >= limit_; }
  /// "10 s of 300 s".
  [[nodiscard]] std::string text() const { return text_of(limit_); }
  [[nodiscard]] std::string text_of(double limit) const {
    return fmt::format("{:.0f} s of {:.0f} s", seconds(), limit);
  }
  bool wants_word() {
    if (seconds() < next_.count()) return false;
    next_ = Seconds(seconds()) + kBetweenWords;
    return true;
  }

 private:
  Clock::time_point began_ = Clock::now();
  double limit_;
  Seconds next_;
};

std::string name_of(int machine, const std::string& host) {
  return fmt::format("machine {} ({})", machine, host);
}

json hello_of(const Party& party) {
  return {{"version", party.version},
          {"machine_rank", party.machine_rank},
          {"num_machines", party.num_machines},
          {"local_processes", party.local_processes},
          {"host", party.host},
          {"settings", party.settings},
          {"argument_hashes", party.argument_hashes}};
}

/// Reads what hello_of() wrote. Throws json::exception for anything else.
Party party_in(const json& hello) {
  Party party;
  party.version = hello.at("version").get<std::string>();
  party.machine_rank = hello.at("machine_rank").get<int>();
  party.num_machines = hello.at("num_machines").get<int>();
  party.local_processes = hello.at("local_processes").get<int>();
  party.host = hello.at("host").get<std::string>();
  party.settings = hello.at("settings").get<decltype(party.settings)>();
  // Launchers of other versions may not have it, and are to be refused by their version.
  if (const auto hashes = hello.find("argument_hashes"); hashes != hello.end())
    party.argument_hashes = hashes->get<decltype(party.argument_hashes)>();
  return party;
}

/// Everything that waits at machine 0.
class Lobby {
 public:
  Lobby(const Party& party, Guests there, bool is_restart)
      : party_(party), progress_(party), guests_(std::move(there)), is_restart_(is_restart) {}

  Guests wait() {
    serve_guests();
    if (!is_complete()) listen();
    while (!is_complete()) {
      try {
        check_interrupted();
      } catch (const Error& error) {
        refuse(guests_, ErrorKind::kFailure, fmt::format("{} ({}) there", error.message(), party_.host));
        throw;
      }
      poll_once();
      if (is_complete()) break;
      if (progress_.seconds() >= limit()) {
        if (is_enough()) break;
        give_up();
      }
      if (progress_.wants_word())
        tell(fmt::format("waiting for machines ({}):\n{}", progress_.text_of(limit()), table()));
    }
    check_sum();
    return std::move(guests_);
  }

 private:
  struct Stranger {
    Connection connection;
    Clock::time_point came = Clock::now();
  };

  void poll_once() {
    std::vector<pollfd> polls = {{listener_.get(), POLLIN, 0}};
    for (const Stranger& stranger : strangers_) polls.push_back({stranger.connection.fd(), POLLIN, 0});
    for (const auto& [machine, guest] : guests_) polls.push_back({guest.connection.fd(), POLLIN, 0});
    ::poll(polls.data(), polls.size(), static_cast<int>(kTick.count()));
    while (true) {
      Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!socket) break;
      strangers_.push_back({Connection(std::move(socket))});
    }
    serve_guests();
    for (Stranger& stranger : strangers_) serve(stranger);
    std::erase_if(strangers_, [](const Stranger& stranger) {
      return !stranger.connection.is_open() || Clock::now() - stranger.came > kHelloTime;
    });
  }

  [[nodiscard]] bool is_complete() const {
    return static_cast<int>(guests_.size()) == party_.num_machines - 1;
  }

  /// Whether the run may begin with those that are there.
  [[nodiscard]] bool is_enough() const { return static_cast<int>(guests_.size()) + 1 >= party_.min_machines; }

  /// How long the others are awaited: at a restart not as long, if those that are there are enough.
  [[nodiscard]] double limit() const {
    return is_restart_ && is_enough() && party_.min_machines < party_.num_machines
               ? party_.last_call_s + Seconds(kLossMargin).count()
               : party_.timeout_s;
  }

  void listen() {
    listener_ = listening_socket(party_.port);
    if (listener_) return;
    const std::string problem = fmt::format(
        "port {} of this machine, on which machine 0 waits for the others, is in use", party_.port);
    refuse(guests_, ErrorKind::kUsage, problem);
    throw Error(ErrorKind::kUsage, problem)
        .hint("choose another main_process_port, the same on all machines");
  }

  /// Forgets guests that have left. One that was asked to end says so, and ends the run.
  void serve_guests() {
    for (auto guest = guests_.begin(); guest != guests_.end();) {
      const std::string name = name_of(guest->first, guest->second.host);
      guest->second.connection.pump();
      while (const auto message = guest->second.connection.next()) {
        if (!message->contains("leaves") && !message->contains("signal")) continue;
        const std::string problem = fmt::format("{} was asked to end", name);
        refuse(guests_, ErrorKind::kFailure, problem);
        throw Error(ErrorKind::kTerminated, problem);
      }
      if (guest->second.connection.is_open()) {
        ++guest;
        continue;
      }
      log::warn(fmt::format("{} has left before all machines were there", name));
      guest = guests_.erase(guest);
    }
  }

  void serve(Stranger& stranger) {
    stranger.connection.pump();
    const std::optional<json> hello = stranger.connection.next();
    if (!hello) return;
    Party theirs;
    try {
      theirs = party_in(*hello);
    } catch (const json::exception&) {
      stranger.connection.close();  // It is no launcher.
      return;
    }
    if (!stranger.connection.is_open()) return;  // It has left already.
    Guest guest{std::move(stranger.connection), theirs.host, "", theirs.local_processes, progress_.seconds()};
    guest.address = peer_address(guest.connection.fd());
    if (const std::string problem = problem_of(theirs); !problem.empty())
      return turn_away(std::move(guest), problem);
    log::debug(
        fmt::format("{} has arrived from {}", name_of(theirs.machine_rank, guest.host), guest.address));
    guests_.emplace(theirs.machine_rank, std::move(guest));
  }

  /// Why a guest cannot take part, or an empty text.
  [[nodiscard]] std::string problem_of(const Party& theirs) const {
    const int machine = theirs.machine_rank;
    const std::string who = name_of(machine, theirs.host);
    if (theirs.version != party_.version)
      return fmt::format("{} has accel {}, and machine 0 ({}) has accel {}", who, theirs.version, party_.host,
                         party_.version);
    if (theirs.num_machines != party_.num_machines)
      return fmt::format("{} has num_machines: {}, and machine 0 ({}) has {}", who, theirs.num_machines,
                         party_.host, party_.num_machines);
    if (machine < 1 || machine >= party_.num_machines)
      return fmt::format("{} has machine_rank: {}; the ranks are 0 to {}", theirs.host, machine,
                         party_.num_machines - 1);
    if (const auto there = guests_.find(machine); there != guests_.end())
      return fmt::format("{} and {} both have machine_rank: {}", there->second.host, theirs.host, machine);
    if (const std::string ranks = problem_of_ranks(theirs); !ranks.empty())
      return fmt::format("{} {}", who, ranks);
    const std::string different = config::differences(theirs.settings, party_.settings, "on machine 0");
    if (!different.empty()) return fmt::format("{} has another configuration: {}", who, different);
    return problem_of_arguments(who, theirs.argument_hashes);
  }

  /// What is wrong with the arguments of a program, whose number is the same; else an empty text.
  [[nodiscard]] std::string problem_of_arguments(const std::string& who,
                                                 const std::vector<std::uint64_t>& theirs) const {
    const auto [here, there] = std::mismatch(party_.argument_hashes.begin(), party_.argument_hashes.end(),
                                             theirs.begin(), theirs.end());
    if (here == party_.argument_hashes.end()) return "";
    return fmt::format("{} has another argument {} of the program than machine 0 ({})", who,
                       here - party_.argument_hashes.begin() + 1, party_.host);
  }

  /// What is wrong with the number of ranks of a machine that comes to a restart; else an empty text.
  [[nodiscard]] std::string problem_of_ranks(const Party& theirs) const {
    if (!is_restart_) return "";
    const auto before = party_.ranks_of_machines.find(theirs.machine_rank);
    if (before != party_.ranks_of_machines.end() && before->second != theirs.local_processes)
      return fmt::format("comes back with {} ranks, and had {}", theirs.local_processes, before->second);
    const int sum = ranks_of(party_, guests_) + theirs.local_processes;
    const bool completes = static_cast<int>(guests_.size()) + 2 == party_.num_machines;
    if (completes ? sum == party_.num_processes : sum < party_.num_processes) return "";
    return fmt::format("has {} ranks; with them the machines would have {}, and num_processes is {}",
                       theirs.local_processes, sum, party_.num_processes);
  }

  /// Ends the rendezvous, since the run that was asked for cannot begin. A run that only begins again turns
  /// the guest away alone.
  void turn_away(Guest guest, const std::string& problem) {
    Guests alone;
    Guests& refused = is_restart_ ? alone : guests_;
    refused.emplace(-1, std::move(guest));
    refuse(refused, ErrorKind::kUsage, problem);
    if (!is_restart_) throw Error(ErrorKind::kUsage, problem);
    log::warn(fmt::format("turned away: {}", problem));
  }

  void check_sum() {
    const int sum = ranks_of(party_, guests_);
    if (!is_complete() || sum == party_.num_processes) return;
    const std::string problem = fmt::format("num_processes is {}, and the machines have {} ranks in all:\n{}",
                                            party_.num_processes, sum, table());
    refuse(guests_, ErrorKind::kUsage, problem);
    throw Error(ErrorKind::kUsage, problem).hint("num_processes counts the ranks of all machines");
  }

  [[noreturn]] void give_up() {
    const std::string problem = fmt::format("{} of {} machines have not arrived within {:.0f} s:\n{}",
                                            party_.num_machines - 1 - static_cast<int>(guests_.size()),
                                            party_.num_machines, party_.timeout_s, table());
    refuse(guests_, ErrorKind::kFailure, problem);
    throw Error(ErrorKind::kFailure, problem)
        .hint(
            fmt::format("does `accel launch` run there, with main_process_ip: {} and main_process_port: {}?",
                        party_.address, party_.port));
  }

  [[nodiscard]] std::string table() const {
    std::string text =
        fmt::format("  machine 0: {}, {} ranks, this one", party_.host, party_.local_processes);
    for (int machine = 1; machine < party_.num_machines; ++machine) {
      const auto there = guests_.find(machine);
      text += there == guests_.end()
                  ? fmt::format("\n  machine {}: has not arrived", machine)
                  : fmt::format("\n  machine {}: {} at {}, {} ranks, arrived after {:.1f} s", machine,
                                there->second.host, there->second.address, there->second.local_processes,
                                there->second.after_s);
    }
    return text;
  }

  void tell(const std::string& text) {
    log_lines(text);
    tell_waiting(guests_, text);
  }

  static void log_lines(const std::string& text) {
    for (const std::string& line : split(text, '\n')) log::info(line);
  }

  const Party& party_;
  Progress progress_;
  Fd listener_;
  std::vector<Stranger> strangers_;
  Guests guests_;
  bool is_restart_;
};

/// A socket connected to the address, or an error number.
std::pair<Fd, int> connect_to(Address address, int port) {
  const sa_family_t family = address.storage.ss_family;
  if (family != AF_INET && family != AF_INET6) return {Fd(), EAFNOSUPPORT};
  port_of(address) = htons(static_cast<std::uint16_t>(port));
  Fd socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return {Fd(), errno};
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address.storage), address.size) != 0 &&
      errno != EINPROGRESS)
    return {Fd(), errno};
  pollfd connected{socket.get(), POLLOUT, 0};
  constexpr int kConnectMs = 3000;
  if (::poll(&connected, 1, kConnectMs) != 1) return {Fd(), ETIMEDOUT};
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return {Fd(), error};
  return {std::move(socket), 0};
}

/// Connects to machine 0, or sets `reason` to why that is not possible now.
std::optional<Connection> reach(const Party& party, std::string& reason) {
  std::vector<Address> addresses;
  try {
    addresses = look_up_within(kLookupTime, look_up, party.address);
  } catch (const Error& error) {
    reason = error.message();
    return std::nullopt;
  }
  for (const Address& address : addresses) {
    auto [socket, error] = connect_to(address, party.port);
    if (socket) return Connection(std::move(socket));
    reason = std::strerror(error);
  }
  return std::nullopt;
}

/// Reads what machine 0 says: a welcome, or why there is none. Nothing if it says nothing yet.
std::optional<std::variant<Welcome, std::string>> answer_in(Connection& connection) {
  while (const std::optional<json> message = connection.next()) {
    if (message->contains("refused"))
      throw Error(message->value("for_failure", false) ? ErrorKind::kFailure : ErrorKind::kUsage,
                  fmt::format("machine 0 refuses to begin: {}", message->value("refused", "")));
    if (message->contains("over")) return message->at("over").get<std::string>();
    if (message->contains("waiting")) {
      for (const std::string& line : split(message->value("waiting", ""), '\n')) log::info(line);
    }
    if (!message->contains("welcome")) continue;
    const json& part = message->at("welcome");
    return Welcome{part.at("machine_rank"), part.at("num_machines"), part.at("num_processes"),
                   part.at("first_rank"),   part.at("master_port"),  part.at("attempt"),
                   part.at("restarts"),     part.at("run_id"),       part.at("resume_from"),
                   part.at("is_finished")};
  }
  return std::nullopt;
}

/// Waits until machine 0, which is connected, decides. It does at the end of its own time limit, or as soon
/// as it has the beginning.
std::variant<Welcome, std::string> await_answer(Connection& connection, const Party& party) {
  connection.begin_to_listen();
  while (Clock::now() < connection.last_word() + Seconds(party.timeout_s) + kAnswerTime) {
    check_interrupted();
    try {
      if (auto answer = answer_in(connection)) return *std::move(answer);
    } catch (const json::exception&) {
      connection.close();
    }
    if (!connection.is_open()) return "it closed the connection";
    pollfd ready{connection.fd(), POLLIN, 0};
    ::poll(&ready, 1, static_cast<int>(kTick.count()));
    connection.pump();
  }
  return "it does not answer";
}

}  // namespace

Guests await_guests(const Party& party) { return Lobby(party, {}, false).wait(); }

Guests await_guests_again(const Party& party, Guests there) {
  return Lobby(party, std::move(there), true).wait();
}

void refuse(Guests& guests, ErrorKind kind, const std::string& why) {
  for (auto& [machine, guest] : guests)
    guest.connection.send({{"refused", why}, {"for_failure", kind != ErrorKind::kUsage}});
  for (auto& [machine, guest] : guests) {
    guest.connection.flush();
    guest.connection.close();
  }
}

int ranks_of(const Party& party, const Guests& guests) {
  int sum = party.local_processes;
  for (const auto& [machine, guest] : guests) sum += guest.local_processes;
  return sum;
}

void welcome(Guests& guests, const Party& party, const Welcome& common) {
  int machine_rank = 1;
  int first_rank = party.local_processes;
  for (auto& [machine, guest] : guests) {
    // What is left of the attempt before.
    while (guest.connection.next()) {
    }
    guest.connection.send({{"welcome",
                            {{"machine_rank", machine_rank++},
                             {"num_machines", common.num_machines},
                             {"num_processes", common.num_processes},
                             {"first_rank", first_rank},
                             {"master_port", common.master_port},
                             {"attempt", common.attempt},
                             {"restarts", common.restarts},
                             {"run_id", common.run_id},
                             {"resume_from", common.resume_from},
                             {"is_finished", common.is_finished}}}});
    first_rank += guest.local_processes;
  }
  for (auto& [machine, guest] : guests) guest.connection.flush();
}

Membership join(const Party& party) {
  Progress progress(party);
  std::string reason = "not tried yet";
  const auto where = fmt::format("machine 0 at {}:{}", party.address, party.port);
  while (!progress.is_over()) {
    check_interrupted();
    if (std::optional<Connection> connection = reach(party, reason)) {
      connection->send(hello_of(party));
      auto answer = await_answer(*connection, party);
      if (const auto* welcome = std::get_if<Welcome>(&answer)) return {std::move(*connection), *welcome};
      reason = std::get<std::string>(answer);
    }
    if (progress.wants_word())
      log::info(fmt::format("waiting for {} ({}): {}", where, progress.text(), reason));
    std::this_thread::sleep_for(kTick);
  }
  throw Error(ErrorKind::kFailure,
              fmt::format("{} is not reached within {:.0f} s: {}", where, party.timeout_s, reason))
      .hint("main_process_ip is the address of machine 0, where `accel launch` must run, too");
}

void tell_waiting(Guests& guests, const std::string& text) {
  for (auto& [machine, guest] : guests) {
    guest.connection.send({{"waiting", text}});
    guest.connection.pump();
  }
}

void tell_end(Guests& guests, const std::string& why) {
  for (auto& [machine, guest] : guests) {
    guest.connection.send({{"over", why}});
    guest.connection.flush();
  }
}

std::variant<Membership, std::string> rejoin(Connection connection, const Party& party) {
  try {
    auto answer = await_answer(connection, party);
    if (const auto* welcome = std::get_if<Welcome>(&answer))
      return Membership{std::move(connection), *welcome};
    return std::get<std::string>(answer);
  } catch (const Error& error) {
    if (is_by_signal(error.kind())) {
      connection.send({{"leaves", true}});
      connection.flush();
    }
    throw;
  }
}

}  // namespace accel::launch
