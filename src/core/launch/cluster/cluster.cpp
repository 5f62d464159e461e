#include "core/launch/cluster/cluster.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <utility>

#include "base/error.hpp"
#include "core/launch/agent/message_fields.hpp"
#include "core/launch/agent/report.hpp"

namespace accel::launch {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

/// A connection that has ended is noticed so soon.
constexpr std::chrono::nanoseconds kSoonNoticed = std::chrono::milliseconds(500);
/// How long the last messages may take.
constexpr auto kLastMessagesTime = std::chrono::seconds(5);

std::int64_t now_ns() {
  struct timespec now {};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

/// The signal that ended a launcher. Any that is not known here counts as SIGTERM.
int signal_in(const json& message) {
  const int signal = int_in(message, "signal", 1, NSIG);
  return signal == SIGINT || signal == SIGHUP ? signal : SIGTERM;
}

/// Takes each message that has arrived while `take` returns true. One of another form closes the connection.
template <class Take>
void take_messages(Connection& connection, const Take& take) {
  try {
    while (const auto message = connection.next()) {
      if (!take(*message)) return;
    }
  } catch (const json::exception&) {
    connection.close();
  } catch (const Error& error) {
    if (is_by_signal(error.kind())) throw;
    connection.close();
  }
}

/// What both sides have in common.
class Base : public Cluster {
 public:
  Base(std::string host, HeartbeatTimes times) : host_(std::move(host)), times_(times) {}

  [[nodiscard]] Clock::time_point deadline() const override { return Clock::now() + times_.interval(); }
  [[nodiscard]] const std::optional<AttemptEnd>& end() const override { return end_; }
  void report_silence(std::optional<std::chrono::milliseconds> silence) override {
    if (heartbeats_) heartbeats_->set_silence(silence);
  }

 protected:
  static void add_poll(const Connection& connection, std::vector<pollfd>& polls) {
    if (!connection.is_open()) return;
    const int writes = connection.wants_to_write() ? POLLOUT : 0;
    polls.push_back({connection.fd(), static_cast<short>(POLLIN | writes), 0});
  }

  void show_work() {
    if (heartbeats_) heartbeats_->show_work();
  }
  static std::chrono::milliseconds idle_in(const json& beat) {
    return std::chrono::milliseconds(int_in(beat, "beat", 0, INT32_MAX));
  }

  void send_heartbeats(std::vector<std::shared_ptr<Outgoing>> connections) {
    for (const auto& connection : connections) connection->leave_losses_to_heartbeats();
    heartbeats_.emplace(std::move(connections), times_.interval());
  }

  /// Why a machine counts as lost; empty as long as it does not. What has arrived must have been read. `idle`
  /// is what its last heartbeat says.
  [[nodiscard]] std::string loss_of(const Connection& connection, std::chrono::milliseconds idle) const {
    if (!connection.is_open()) return "its launcher has ended or its connection is broken";
    if (connection.silence() >= times_.timeout)
      return fmt::format("no heartbeat from its launcher for {:g} s (launch.heartbeat_timeout)",
                         std::chrono::duration<double>(times_.timeout).count());
    if (idle < times_.work_timeout()) return "";
    return fmt::format(
        "its launcher has done nothing for {:g} s (ten times launch.heartbeat_timeout); "
        "a file server may hold it up",
        std::chrono::duration<double>(times_.work_timeout()).count());
  }

  /// The end of a machine that is lost. It may have been lost as soon as it was silent, and ranks of other
  /// machines may have failed since for want of its ranks.
  [[nodiscard]] AttemptEnd loss(const std::string& who, const std::string& why,
                                const Connection& connection) const {
    std::chrono::nanoseconds silence = connection.silence();
    if (!connection.is_open()) silence = std::min(silence, kSoonNoticed);
    AttemptEnd end{ExitCode::kWorkerFailed, fmt::format("{} is lost: {}", who, why),
                   kUsualRestartsWithoutProgress};
    end.failed_at_ns = std::max<std::int64_t>(0, now_ns() - silence.count() - began_at_ns_);
    return end;
  }

  std::string host_;
  HeartbeatTimes times_;
  std::int64_t began_at_ns_ = now_ns();
  std::optional<AttemptEnd> end_;  ///< The end of the attempt on all machines.
  std::optional<Heartbeats> heartbeats_;
};

/// Machine 0.
class Leader final : public Base {
 public:
  Leader(Members members, std::string host, HeartbeatTimes times) : Base(std::move(host), times) {
    std::vector<std::shared_ptr<Outgoing>> connections;
    for (auto& [machine, member] : members) {
      std::string name = fmt::format("machine {} ({} at {})", machine, member.host, member.address);
      connections.push_back(member.connection.outgoing());
      remotes_.push_back({machine, std::move(name), std::move(member)});
      remotes_.back().member.connection.reset_silence();
    }
    send_heartbeats(std::move(connections));
  }

  void add_polls(std::vector<pollfd>& polls) const override {
    for (const RemoteMachine& remote : remotes_) add_poll(remote.member.connection, polls);
  }

  PeerRequest serve() override {
    PeerRequest request;
    show_work();
    for (RemoteMachine& remote : remotes_) {
      remote.member.connection.pump();
      take_messages(remote.member.connection, [&](const json& message) {
        take(message, remote, request);
        return true;
      });
      if (remote.end) continue;
      if (const std::string why = loss_of(remote.member.connection, remote.idle); !why.empty()) {
        remote.end = loss(remote.name, why, remote.member.connection);
        remote.member.connection.close();
        request.ends_now = true;
      }
    }
    if (request.looks) send_to_all({{"hangs", true}});
    if (request.ends_now) send_to_all({{"failed", true}});
    was_interrupted_ |= request.signal != 0;
    if (request.signal != 0) send_to_all({{"signal", request.signal}});
    conclude();
    return request;
  }

  [[nodiscard]] std::string own_address() const override {
    return remotes_.empty() ? "" : accel::launch::own_address(remotes_.front().member.connection.fd());
  }
  void abandon(const std::string& why) override {
    const std::string report = fmt::format("machine 0 ({}) cannot begin: {}", host_, why);
    send_to_all({{"failed", true}});
    send_to_all({{"end", to_json(AttemptEnd{ExitCode::kWorkerFailed, report})}});
    for (RemoteMachine& remote : remotes_) remote.member.connection.flush();
  }
  void leave() override {
    for (RemoteMachine& remote : remotes_) {
      remote.member.connection.send({{"refused", "it was asked to end"}, {"for_failure", true}});
      remote.member.connection.flush();
    }
  }
  [[nodiscard]] Members release() override {
    heartbeats_.reset();
    Members open;
    for (RemoteMachine& remote : remotes_) {
      if (remote.member.connection.is_open()) open.emplace(remote.machine, std::move(remote.member));
    }
    return open;
  }
  [[nodiscard]] bool decides() const override { return true; }
  [[nodiscard]] std::optional<std::chrono::milliseconds> silence_elsewhere() const override {
    std::optional<std::chrono::milliseconds> shortest;
    for (const RemoteMachine& remote : remotes_) {
      if (remote.end || !remote.silence) continue;
      // The ranks of a machine may have written since its last heartbeat, if that came long ago.
      const bool is_current = remote.member.connection.silence() < times_.loss_margin();
      const auto silence = is_current ? *remote.silence : std::chrono::milliseconds(0);
      shortest = shortest ? std::min(*shortest, silence) : silence;
    }
    return shortest;
  }
  void on_hang() override { send_to_all({{"hangs", true}}); }
  void on_failure() override { send_to_all({{"failed", true}}); }
  void on_signal(int signal) override {
    was_interrupted_ = true;
    send_to_all({{"signal", signal}});
  }
  void on_end(const GroupOutcome& outcome) override {
    own_end_ = end_of_machine(outcome, host_, began_at_ns_);
    conclude();
  }
  [[nodiscard]] bool is_over() const override {
    return end_ && (Clock::now() > last_messages_until_ ||
                    std::none_of(remotes_.begin(), remotes_.end(), [](const RemoteMachine& m) {
                      return m.member.connection.has_undelivered();
                    }));
  }

 private:
  struct RemoteMachine {
    int machine = 0;
    std::string name;
    Member member;
    std::optional<AttemptEnd> end = std::nullopt;
    /// Its last heartbeat says that its launcher has done nothing for so long.
    std::chrono::milliseconds idle{0};
    /// Its last heartbeat says that its ranks have written nothing for so long; absent if none of them runs.
    std::optional<std::chrono::milliseconds> silence = std::chrono::milliseconds(0);
  };

  static void take(const json& message, RemoteMachine& remote, PeerRequest& request) {
    if (message.contains("beat")) {
      remote.idle = idle_in(message);
      remote.silence.reset();
      if (message.contains("silent_ms"))
        remote.silence = std::chrono::milliseconds(int_in(message, "silent_ms", 0, INT32_MAX));
    }
    if (message.contains("hangs")) request.looks = true;
    if (message.contains("failed")) request.ends_now = true;
    if (message.contains("signal")) request.signal = signal_in(message);
    if (message.contains("leaves")) request.signal = SIGTERM;
    if (message.contains("end")) remote.end = attempt_end_from_json(message.at("end"));
  }

  void send_to_all(const json& message) {
    for (RemoteMachine& remote : remotes_) {
      remote.member.connection.send(message);
      remote.member.connection.pump();
    }
  }

  void conclude() {
    if (end_ || !own_end_ || !std::all_of(remotes_.begin(), remotes_.end(), [](const RemoteMachine& m) {
          return m.end.has_value();
        }))
      return;
    std::vector<AttemptEnd> ends = {*own_end_};
    for (const RemoteMachine& remote : remotes_) ends.push_back(*remote.end);
    end_ = end_of_all(ends);
    end_->was_interrupted |= was_interrupted_;
    last_messages_until_ = Clock::now() + kLastMessagesTime;
    send_to_all({{"end", to_json(*end_)}});
  }

  std::vector<RemoteMachine> remotes_;
  std::optional<AttemptEnd> own_end_;
  bool was_interrupted_ = false;
  Clock::time_point last_messages_until_;
};

/// Any other machine.
class Follower final : public Base {
 public:
  Follower(Connection connection, std::string host, std::string leader, HeartbeatTimes times)
      : Base(std::move(host), times), connection_(std::move(connection)), leader_(std::move(leader)) {
    connection_.reset_silence();
    send_heartbeats({connection_.outgoing()});
  }

  // The end of all machines may come before the workers of this machine have ended, and nothing is read after
  // it.
  void add_polls(std::vector<pollfd>& polls) const override {
    if (!end_) add_poll(connection_, polls);
  }
  PeerRequest serve() override {
    PeerRequest request;
    show_work();
    if (end_) return request;
    connection_.pump();
    take_messages(connection_, [&](const json& message) {
      if (message.contains("beat")) idle_ = idle_in(message);
      if (message.contains("hangs")) request.looks = true;
      if (message.contains("failed")) request.ends_now = true;
      if (message.contains("signal")) request.signal = signal_in(message);
      // Machine 0 was asked to end when this one had begun already.
      if (message.contains("refused")) request.signal = SIGTERM;
      if (message.contains("end")) end_ = attempt_end_from_json(message.at("end"));
      return !end_;  // What follows is about the next attempt.
    });
    if (end_ || loss_) return request;
    if (const std::string why = loss_of(connection_, idle_); !why.empty()) {
      loss_ = loss(leader_, why, connection_);
      connection_.close();
      request.ends_now = true;
      conclude_alone();
    }
    return request;
  }

  [[nodiscard]] std::string own_address() const override {
    return accel::launch::own_address(connection_.fd());
  }
  void abandon(const std::string& why) override {
    connection_.send({{"failed", true}});
    connection_.send({{"end", to_json(AttemptEnd{ExitCode::kWorkerFailed,
                                                 fmt::format("{} cannot begin: {}", host_, why), 0})}});
    connection_.flush();
  }
  void leave() override {
    connection_.send({{"leaves", true}});
    connection_.flush();
  }
  [[nodiscard]] Members release() override {
    heartbeats_.reset();
    Members open;
    if (connection_.is_open() || connection_.has_message())
      open.emplace(0, Member{std::move(connection_), leader_, "", 0, 0});
    return open;
  }
  [[nodiscard]] bool decides() const override { return false; }
  [[nodiscard]] std::optional<std::chrono::milliseconds> silence_elsewhere() const override {
    return std::nullopt;
  }
  void on_hang() override {
    connection_.send({{"hangs", true}});
    connection_.pump();
  }
  void on_failure() override {
    connection_.send({{"failed", true}});
    connection_.pump();
  }
  void on_signal(int signal) override {
    connection_.send({{"signal", signal}});
    connection_.pump();
  }
  void on_end(const GroupOutcome& outcome) override {
    own_end_ = end_of_machine(outcome, host_, began_at_ns_);
    connection_.send({{"end", to_json(*own_end_)}});
    connection_.pump();
    conclude_alone();
  }
  [[nodiscard]] bool is_over() const override { return end_.has_value(); }

 private:
  void conclude_alone() {
    if (loss_ && own_end_) end_ = end_of_all({*own_end_, *loss_});
  }

  Connection connection_;
  std::string leader_;
  std::chrono::milliseconds idle_{0};  ///< For how long machine 0's launcher has done nothing.
  std::optional<AttemptEnd> own_end_;
  std::optional<AttemptEnd> loss_;
};

}  // namespace

std::unique_ptr<Cluster> lead(Members members, std::string host, HeartbeatTimes heartbeats) {
  return std::make_unique<Leader>(std::move(members), std::move(host), heartbeats);
}

std::unique_ptr<Cluster> follow(Connection connection, std::string host, std::string leader,
                                HeartbeatTimes heartbeats) {
  return std::make_unique<Follower>(std::move(connection), std::move(host), std::move(leader), heartbeats);
}

}  // namespace accel::launch
