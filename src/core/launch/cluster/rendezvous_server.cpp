#include "core/launch/cluster/rendezvous_server.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "core/launch/cluster/admission.hpp"
#include "core/launch/cluster/pending_connections.hpp"
#include "core/launch/cluster/rendezvous_messages.hpp"
#include "core/launch/cluster/wait_progress.hpp"
#include "core/launch/world/port.hpp"

namespace accel::launch {
namespace {

using nlohmann::json;
using Seconds = std::chrono::duration<double>;

/// Machine 0 while it waits for the others.
class RendezvousServer {
 public:
  RendezvousServer(const RendezvousParameters& parameters, Members there, bool is_restart)
      : parameters_(parameters),
        progress_(parameters.timeout_s, parameters.first_report_s),
        members_(std::move(there)),
        is_restart_(is_restart) {}

  Members wait() {
    serve_members();
    if (!is_complete()) listen();
    while (!is_complete()) {
      try {
        check_interrupted();
      } catch (const Error& error) {
        refuse(members_, ErrorKind::kFailure,
               fmt::format("{} ({}) there", error.message(), parameters_.host));
        throw;
      }
      poll_once();
      if (is_complete()) break;
      if (progress_.seconds() >= limit()) {
        if (is_enough()) break;
        give_up();
      }
      if (progress_.is_due())
        report(fmt::format("waiting for machines ({}):\n{}", progress_.text_of(limit()), table()));
    }
    check_sum();
    return std::move(members_);
  }

 private:
  void poll_once() {
    std::vector<pollfd> polls;
    pending_->add_polls(polls);
    for (const auto& [machine, member] : members_) polls.push_back({member.connection.fd(), POLLIN, 0});
    ::poll(polls.data(), polls.size(), static_cast<int>(kTick.count()));
    serve_members();
    pending_->serve([this](PendingConnection& pending) { serve(pending); });
  }

  [[nodiscard]] bool is_complete() const {
    return static_cast<int>(members_.size()) == parameters_.num_machines - 1;
  }

  /// Whether the run may begin with those that are there.
  [[nodiscard]] bool is_enough() const {
    return static_cast<int>(members_.size()) + 1 >= parameters_.min_machines;
  }

  /// How long the others are awaited: at a restart not as long, if those that are there are enough.
  [[nodiscard]] double limit() const {
    return is_restart_ && is_enough() && parameters_.min_machines < parameters_.num_machines
               ? parameters_.last_call_s + Seconds(parameters_.heartbeats.loss_margin()).count()
               : parameters_.timeout_s;
  }

  void listen() {
    std::vector<Fd> listeners = listening_sockets(parameters_.address, parameters_.port);
    if (listeners.empty()) {
      const std::string problem = fmt::format(
          "port {} of this machine, on which machine 0 waits for the others, is in use", parameters_.port);
      refuse(members_, ErrorKind::kUsage, problem);
      throw Error(ErrorKind::kUsage, problem)
          .hint("choose another main_process_port, the same on all machines");
    }
    pending_.emplace(
        std::move(listeners),
        [this](PendingConnection& pending) {
          pending.handshake.challenge = new_nonce();
          pending.connection.send(
              {{"challenge", pending.handshake.challenge}, {"version", parameters_.version}});
        },
        [this](const PendingConnection& pending, const std::string& why) { log_turned_away(pending, why); });
  }

  /// Forgets members that have left. One that was asked to end says so, and ends the run.
  void serve_members() {
    for (auto member = members_.begin(); member != members_.end();) {
      const std::string name = name_of_machine(member->first, member->second.host);
      member->second.connection.pump();
      while (const auto message = member->second.connection.next()) {
        if (!message->contains("leaves") && !message->contains("signal")) continue;
        const std::string problem = fmt::format("{} was asked to end", name);
        refuse(members_, ErrorKind::kFailure, problem);
        throw Error(ErrorKind::kTerminated, problem);
      }
      if (member->second.connection.is_open()) {
        ++member;
        continue;
      }
      log::warn(fmt::format("{} has left before all machines were there", name));
      member = members_.erase(member);
    }
  }

  void serve(PendingConnection& pending) {
    pending.connection.pump();
    while (const std::optional<json> message = pending.connection.next()) {
      RendezvousParameters theirs;
      try {
        if (!pending.is_accepted) {
          take_hello(pending, *message);
          if (!pending.connection.is_open()) return;
          continue;
        }
        theirs = join_from_json(message->value("join", json()));
      } catch (const Error& error) {
        return turn_away(pending, fmt::format("it is not a launcher of accel: {}", error.message()));
      }
      if (pending.connection.is_open()) take_join(pending, std::move(theirs));
      return;
    }
    if (pending.connection.is_garbled())
      log_turned_away(pending, "it is not a launcher of accel: it sent what is not a message");
    pending.connection.pump();
  }

  void take_hello(PendingConnection& pending, const json& message) {
    const Hello hello = hello_from_json(message.value("hello", json()));
    pending.host = hello.host;
    if (hello.version != parameters_.version) return turn_away_version(pending, hello.version);
    if (!is_nonce(hello.nonce)) throw Error(ErrorKind::kFailure, "its nonce has another form");
    pending.handshake = {pending.handshake.challenge, hello.nonce, hello.version, hello.run_id};
    if (!parameters_.secret.empty() &&
        !is_proof(hello.proof, parameters_.secret, Role::kMember, pending.handshake)) {
      return turn_away(pending,
                       "it does not know the secret of this run, which is in ACCEL_RUN_SECRET or in the file "
                       "'run_secret' of output_dir");
    }
    if (hello.run_id != parameters_.run_id) {
      const std::string theirs = fmt::format("it belongs to run '{}', and machine 0 ", hello.run_id);
      return turn_away(pending, fmt::format("{}to '{}' (launch.run_id)", theirs, parameters_.run_id),
                       theirs + "to another one (launch.run_id)");
    }
    pending.is_accepted = true;
    pending.connection.set_longest_message(Connection::kLongestMessage);
    pending.connection.send({{"accepted", proof_of(parameters_.secret, Role::kServer, pending.handshake)}});
  }

  void take_join(PendingConnection& pending, RendezvousParameters theirs) {
    theirs.host = pending.host;
    Member member{std::move(pending.connection), pending.host, pending.address, theirs.local_processes,
                  progress_.seconds()};
    if (const Problem problem = admission_problem(parameters_, members_, theirs, is_restart_))
      return reject(std::move(member), problem);
    log::debug(fmt::format("{} has arrived from {}", name_of_machine(theirs.machine_rank, member.host),
                           member.address));
    members_.emplace(theirs.machine_rank, std::move(member));
  }

  void turn_away_version(PendingConnection& pending, const std::string& version) {
    turn_away(pending,
              fmt::format("it has accel {}, and machine 0 has accel {}", version, parameters_.version));
  }

  /// Refuses a connection that is not of this run, and goes on. `told` is what the other side may know.
  void turn_away(PendingConnection& pending, const std::string& why, const std::string& told = "") {
    pending.connection.send({{"refused", turned_away(pending, told.empty() ? why : told)}});
    pending.connection.pump();
    log_turned_away(pending, why);
    pending.connection.close();
  }

  [[nodiscard]] std::string turned_away(const PendingConnection& pending, const std::string& why) const {
    const std::string who =
        pending.host.empty() ? pending.address : fmt::format("{} at {}", pending.host, pending.address);
    return fmt::format("{} is turned away from {}:{}: {}", who, parameters_.address, parameters_.port, why);
  }

  /// Each line appears once, and no more than a few of them, whatever others send.
  void log_turned_away(const PendingConnection& pending, const std::string& why) {
    constexpr std::size_t kMostLines = 32;
    const std::string line = turned_away(pending, why);
    const bool is_new = logged_.size() < kMostLines && logged_.insert(line).second;
    is_new ? log::warn(line) : log::debug(line);
  }

  /// Ends the rendezvous, since the run that was asked for cannot begin. A run that only begins again turns
  /// the launcher away alone.
  void reject(Member member, const Problem& problem) {
    Members alone;
    Members& refused = is_restart_ ? alone : members_;
    refused.emplace(-1, std::move(member));
    refuse(refused, ErrorKind::kUsage, problem.told);
    if (!is_restart_) throw Error(ErrorKind::kUsage, problem.text);
    log::warn(fmt::format("turned away: {}", problem.text));
  }

  void check_sum() {
    const int sum = ranks_of(parameters_, members_);
    if (!is_complete() || sum == parameters_.num_processes) return;
    const std::string problem = fmt::format("num_processes is {}, and the machines have {} ranks in all:\n{}",
                                            parameters_.num_processes, sum, table());
    refuse(members_, ErrorKind::kUsage, problem);
    throw Error(ErrorKind::kUsage, problem).hint("num_processes counts the ranks of all machines");
  }

  [[noreturn]] void give_up() {
    const std::string problem = fmt::format("{} of {} machines have not arrived within {:.0f} s:\n{}",
                                            parameters_.num_machines - 1 - static_cast<int>(members_.size()),
                                            parameters_.num_machines, parameters_.timeout_s, table());
    refuse(members_, ErrorKind::kFailure, problem);
    throw Error(ErrorKind::kFailure, problem)
        .hint(
            fmt::format("does `accel launch` run there, with main_process_ip: {} and main_process_port: {}?",
                        parameters_.address, parameters_.port));
  }

  [[nodiscard]] std::string table() const {
    std::string text =
        fmt::format("  machine 0: {}, {} ranks, this one", parameters_.host, parameters_.local_processes);
    for (int machine = 1; machine < parameters_.num_machines; ++machine) {
      const auto there = members_.find(machine);
      text += there == members_.end()
                  ? fmt::format("\n  machine {}: has not arrived", machine)
                  : fmt::format("\n  machine {}: {} at {}, {} ranks, arrived after {:.1f} s", machine,
                                there->second.host, there->second.address, there->second.local_processes,
                                there->second.after_s);
    }
    return text;
  }

  void report(const std::string& text) {
    for (const std::string& line : split(text, '\n')) log::info(line);
    send_waiting(members_, text);
  }

  const RendezvousParameters& parameters_;
  WaitProgress progress_;
  std::optional<PendingConnections> pending_;
  Members members_;
  bool is_restart_;
  std::set<std::string> logged_;
};

}  // namespace

Members await_members(const RendezvousParameters& parameters) {
  return RendezvousServer(parameters, {}, false).wait();
}

Members await_members_again(const RendezvousParameters& parameters, Members there) {
  return RendezvousServer(parameters, std::move(there), true).wait();
}

void refuse(Members& members, ErrorKind kind, const std::string& why) {
  for (auto& [machine, member] : members)
    member.connection.send({{"refused", why}, {"for_failure", kind != ErrorKind::kUsage}});
  for (auto& [machine, member] : members) {
    member.connection.flush();
    member.connection.close();
  }
}

int ranks_of(const RendezvousParameters& parameters, const Members& members) {
  int sum = parameters.local_processes;
  for (const auto& [machine, member] : members) sum += member.local_processes;
  return sum;
}

void send_welcome(Members& members, const RendezvousParameters& parameters, const Welcome& common) {
  Welcome part = common;
  part.machine_rank = 1;
  part.first_rank = parameters.local_processes;
  for (auto& [machine, member] : members) {
    // What is left of the attempt before.
    while (member.connection.next()) {
    }
    member.connection.send({{"welcome", to_json(part)}});
    ++part.machine_rank;
    part.first_rank += member.local_processes;
  }
  for (auto& [machine, member] : members) member.connection.flush();
}

void send_waiting(Members& members, const std::string& text) {
  for (auto& [machine, member] : members) {
    member.connection.send({{"waiting", text}});
    member.connection.pump();
  }
}

void send_end(Members& members, const std::string& why) {
  for (auto& [machine, member] : members) {
    member.connection.send({{"over", why}});
    member.connection.flush();
  }
}

}  // namespace accel::launch
