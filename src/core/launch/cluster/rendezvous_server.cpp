#include "core/launch/cluster/rendezvous_server.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/host/descriptors.hpp"
#include "base/interrupt.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "core/launch/cluster/admission.hpp"
#include "core/launch/cluster/arrival_table.hpp"
#include "core/launch/cluster/pending_connections.hpp"
#include "core/launch/cluster/rendezvous_messages.hpp"
#include "core/launch/cluster/wait_progress.hpp"
#include "core/launch/world/port.hpp"

namespace accel::launch {
namespace {

using nlohmann::json;
using Seconds = std::chrono::duration<double>;

/// The size of a join. Without a secret anybody may send one. That of a launcher of the run is about as large
/// as this machine's own, and one whose program has other arguments is still to be told so.
std::size_t longest_join(const RendezvousParameters& own) {
  constexpr std::size_t kMore = 256 << 10;
  if (!own.secret.empty()) return Connection::kLongestMessage;
  // A path may not be UTF-8.
  return 2 * join_to_json(own).dump(-1, ' ', false, json::error_handler_t::replace).size() + kMore;
}

/// Machine 0 while it waits for the others.
class RendezvousServer {
 public:
  RendezvousServer(const RendezvousParameters& parameters, Members there, bool is_restart)
      : parameters_(parameters),
        progress_(parameters.timeout_s, parameters.first_report_s),
        members_(std::move(there)),
        is_restart_(is_restart),
        longest_join_(longest_join(parameters)) {}

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
        report(fmt::format("waiting for machines ({}):\n{}", progress_.text_of(limit()),
                           arrival_table(parameters_, members_)));
    }
    check_sum();
    return std::move(members_);
  }

 private:
  void poll_once() {
    std::vector<pollfd> polls;
    pending_->set_most(missing() + spare_);
    pending_->add_polls(polls);
    polls.push_back({watched_.get(), POLLIN, 0});
    ::poll(polls.data(), polls.size(), static_cast<int>(kTick.count()));
    serve_ready_members();
    pending_->serve(std::span(polls).first(polls.size() - 1),
                    [this](PendingConnection& pending) { serve(pending); });
  }

  /// Lets epoll tell when something can be read from a member or written to it. poll(2) would look at
  /// thousands of members each time one launcher sends a line.
  void watch(const Members::value_type& entry) {
    epoll_event event{};
    // pump() reads and writes until the socket would block.
    event.events = EPOLLIN | EPOLLOUT | EPOLLET;
    event.data.u64 = static_cast<std::uint64_t>(entry.first);
    if (::epoll_ctl(watched_.get(), EPOLL_CTL_ADD, entry.second.connection.fd(), &event) != 0)
      throw system_error("watch", "the connection of a machine", errno);
  }

  void serve_ready_members() {
    std::array<epoll_event, 256> events{};
    int count = 0;
    do {
      count = ::epoll_wait(watched_.get(), events.data(), static_cast<int>(events.size()), 0);
      for (int i = 0; i < count; ++i) {
        const auto member = members_.find(static_cast<int>(events.at(static_cast<std::size_t>(i)).data.u64));
        if (member != members_.end() && !serve_member(*member)) members_.erase(member);
      }
    } while (count == static_cast<int>(events.size()));
  }

  /// How many machines have not arrived.
  [[nodiscard]] std::size_t missing() const {
    return static_cast<std::size_t>(parameters_.num_machines - 1) - members_.size();
  }
  [[nodiscard]] bool is_complete() const { return missing() == 0; }

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
    make_room();
    for (const auto& entry : members_) watch(entry);
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
        [this](const PendingConnection& pending, const std::string& why) { log_turned_away(pending, why); },
        PendingConnections::Limits());
  }

  /// Makes room for the connections of the machines that are missing, for others, and for what else the
  /// launcher opens.
  void make_room() {
    // A launcher that comes behind 4096 silent connections, which is what the queue of the kernel usually
    // holds, is accepted within eight seconds.
    constexpr std::size_t kMostSpare = 512;
    constexpr std::size_t kLeastSpare = 16;
    constexpr std::size_t kOthers = 64;
    constexpr std::size_t kOthersOfARank = 8;
    const std::size_t needed = missing() + kOthers;
    const std::size_t for_ranks = kOthersOfARank * static_cast<std::size_t>(parameters_.local_processes);
    const std::size_t room = allow_descriptors(needed + for_ranks + kMostSpare);
    const auto left = [room](std::size_t taken) { return room - std::min(room, taken); };
    // What the ranks need is an estimate, for which no run is refused.
    spare_ = std::max(std::min(kMostSpare, left(needed + for_ranks)), std::min(kLeastSpare, left(needed)));
    if (spare_ >= kLeastSpare) return;
    const std::size_t open = open_descriptors();
    const std::string problem = fmt::format(
        "machine 0 ({}) has a connection to each of {} machines and needs {} file descriptors, and its "
        "launcher may have {}",
        parameters_.host, parameters_.num_machines, open + needed + kLeastSpare, open + room);
    refuse(members_, ErrorKind::kUsage, problem);
    throw Error(ErrorKind::kUsage, problem)
        .hint(
            "raise the hard limit there: `ulimit -Hn`, LimitNOFILE= of a systemd service, or --ulimit "
            "nofile= of a container");
  }

  /// Forgets members that have left.
  void serve_members() {
    for (auto member = members_.begin(); member != members_.end();)
      member = serve_member(*member) ? std::next(member) : members_.erase(member);
  }

  /// Whether a member is still there. One that was asked to end says so, and ends the run.
  bool serve_member(Members::value_type& entry) {
    auto& [machine, member] = entry;
    // pump() does not read on behind long messages, and epoll does not tell of the rest again.
    bool has_read = true;
    while (has_read) {
      has_read = false;
      member.connection.pump();
      while (const auto message = member.connection.next()) {
        has_read = true;
        if (!message->contains("leaves") && !message->contains("signal")) continue;
        const std::string problem = fmt::format("{} was asked to end", name_of_machine(machine, member.host));
        refuse(members_, ErrorKind::kFailure, problem);
        throw Error(ErrorKind::kTerminated, problem);
      }
    }
    if (member.connection.is_open()) return true;
    log::warn(
        fmt::format("{} has left before all machines were there", name_of_machine(machine, member.host)));
    return false;
  }

  void serve(PendingConnection& pending) {
    // A pump() that writes an answer reads, too, and poll() does not wait for what is read.
    do {
      pending.connection.pump();
      if (const std::optional<json> message = pending.connection.next()) take(pending, *message);
      pending.connection.pump();
    } while (pending.connection.is_open() && pending.connection.has_message());
    if (pending.connection.is_garbled())
      log_turned_away(pending, "it is not a launcher of accel: it sent what is not a message");
  }

  void take(PendingConnection& pending, const json& message) {
    RendezvousParameters theirs;
    try {
      if (!pending.is_accepted) return take_hello(pending, message);
      theirs = join_from_json(message.value("join", json()));
    } catch (const Error& error) {
      return turn_away(pending, fmt::format("it is not a launcher of accel: {}", error.message()));
    }
    if (pending.connection.is_open()) take_join(pending, std::move(theirs));
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
    pending.connection.set_longest_message(longest_join_);
    pending.connection.send({{"accepted", proof_of(parameters_.secret, Role::kServer, pending.handshake)}});
  }

  void take_join(PendingConnection& pending, RendezvousParameters theirs) {
    theirs.host = pending.host;
    if (const auto seat = members_.find(theirs.machine_rank);
        seat != members_.end() && (has_vanished(*seat) || !serve_member(*seat)))
      members_.erase(seat);
    Member member{std::move(pending.connection), pending.host, pending.address, theirs.local_processes,
                  progress_.seconds()};
    if (const Problem problem = admission_problem(parameters_, members_, theirs, is_restart_))
      return reject(std::move(member), problem);
    member.connection.set_longest_message(Connection::kLongestMessage);
    log::debug(fmt::format("{} has arrived from {}", name_of_machine(theirs.machine_rank, member.host),
                           member.address));
    watch(*members_.emplace(theirs.machine_rank, std::move(member)).first);
  }

  /// Whether the machine of a member does not answer any more. Its kernel answers for a launcher that is
  /// busy.
  [[nodiscard]] bool has_vanished(Members::value_type& seat) {
    constexpr auto kPatience = std::chrono::seconds(2);
    Connection& connection = seat.second.connection;
    connection.send({{"waiting", "another launcher has come with the machine_rank of this one"}});
    const auto until = std::chrono::steady_clock::now() + kPatience;
    do {
      connection.pump();
      if (!connection.has_undelivered()) return false;  // serve_member() sees whether it has left.
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    } while (std::chrono::steady_clock::now() < until);
    log::warn(fmt::format("{} does not answer; another launcher takes its place",
                          name_of_machine(seat.first, seat.second.host)));
    return true;
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
    const std::string problem =
        fmt::format("num_processes is {}, and the machines have {} ranks in all:\n{}",
                    parameters_.num_processes, sum, arrival_table(parameters_, members_));
    refuse(members_, ErrorKind::kUsage, problem);
    throw Error(ErrorKind::kUsage, problem).hint("num_processes counts the ranks of all machines");
  }

  [[noreturn]] void give_up() {
    const std::string problem =
        fmt::format("{} of {} machines have not arrived within {:.0f} s:\n{}", missing(),
                    parameters_.num_machines, parameters_.timeout_s, arrival_table(parameters_, members_));
    refuse(members_, ErrorKind::kFailure, problem);
    throw Error(ErrorKind::kFailure, problem)
        .hint(
            fmt::format("does `accel launch` run there, with main_process_ip: {} and main_process_port: {}?",
                        parameters_.address, parameters_.port));
  }

  void report(const std::string& text) {
    for (const std::string& line : split(text, '\n')) log::info(line);
    send_waiting(members_, text);
    serve_members();
  }

  const RendezvousParameters& parameters_;
  WaitProgress progress_;
  Fd watched_{::epoll_create1(EPOLL_CLOEXEC)};  ///< The members, by the rank of their machine.
  std::optional<PendingConnections> pending_;
  Members members_;
  bool is_restart_;
  std::size_t longest_join_;
  std::size_t spare_ = 0;  ///< How many connections may be pending beside those of missing machines.
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
