#include "core/launch/cluster/cluster.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <ctime>
#include <utility>

#include "core/launch/agent/report.hpp"

namespace accel::launch {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr auto kBeat = std::chrono::seconds(2);
/// A connection that has ended is noticed so soon.
constexpr std::chrono::nanoseconds kSoonNoticed = std::chrono::milliseconds(500);
/// How long the last messages may take.
constexpr auto kLastMessagesTime = std::chrono::seconds(5);

std::int64_t now_ns() {
  struct timespec now {};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

json to_json(const MachineEnd& end) {
  return {{"code", to_int(end.code)},
          {"report", end.report},
          {"hang", end.hang ? accel::launch::to_json(*end.hang) : json()},
          {"failed_at_ns", end.failed_at_ns},
          {"futile_restarts", end.futile_restarts},
          {"was_interrupted", end.was_interrupted},
          {"found_corrupt", end.found_corrupt}};
}

json to_json(const Verdict& verdict) {
  return {{"verdict",
           {{"code", to_int(verdict.code)},
            {"report", verdict.report},
            {"futile_restarts", verdict.futile_restarts},
            {"was_interrupted", verdict.was_interrupted},
            {"found_corrupt", verdict.found_corrupt}}}};
}

MachineEnd end_in(const json& message) {
  const json& hang = message.at("hang");
  return {static_cast<ExitCode>(message.at("code").get<int>()),
          message.at("report"),
          message.at("failed_at_ns"),
          message.at("futile_restarts"),
          hang.is_null() ? std::nullopt : std::optional(hang_from_json(hang)),
          message.at("was_interrupted"),
          message.at("found_corrupt")};
}

/// The signal that ended a launcher. Any that is not known here counts as SIGTERM.
int signal_in(const json& message) {
  const int signal = message.at("signal").get<int>();
  return signal == SIGINT || signal == SIGHUP ? signal : SIGTERM;
}

/// Why a machine counts as lost; empty as long as it does not.
std::string loss_of(const Connection& connection) {
  if (!connection.is_open()) return "its launcher has ended or its connection is broken";
  if (Clock::now() - connection.last_received() < kSilence) return "";
  return fmt::format("no word from its launcher for {} s", kSilence.count());
}

/// What both sides have in common.
class Base : public Cluster {
 public:
  explicit Base(std::string host) : host_(std::move(host)) {}

  [[nodiscard]] Clock::time_point deadline() const override { return next_beat_; }
  [[nodiscard]] const std::optional<Verdict>& verdict() const override { return verdict_; }

 protected:
  static void add_poll(const Connection& connection, std::vector<pollfd>& polls) {
    if (!connection.is_open()) return;
    const int writes = connection.wants_to_write() ? POLLOUT : 0;
    polls.push_back({connection.fd(), static_cast<short>(POLLIN | writes), 0});
  }

  /// Whether it is time to say that this launcher is there.
  bool beats() {
    if (Clock::now() < next_beat_) return false;
    next_beat_ = Clock::now() + kBeat;
    return true;
  }

  /// The end of a machine that is lost. It may have been lost as soon as it was silent, and ranks of other
  /// machines may have failed since for want of its ranks.
  [[nodiscard]] MachineEnd loss(const std::string& who, const std::string& why,
                                const Connection& connection) const {
    std::chrono::nanoseconds silence = Clock::now() - connection.last_received();
    if (!connection.is_open()) silence = std::min(silence, kSoonNoticed);
    return {ExitCode::kWorkerFailed, fmt::format("{} is lost: {}", who, why),
            std::max<std::int64_t>(0, now_ns() - silence.count() - began_at_ns_), kUsualFutileRestarts};
  }

  std::string host_;
  std::int64_t began_at_ns_ = now_ns();
  Clock::time_point next_beat_ = Clock::now();
  std::optional<Verdict> verdict_;
};

/// Machine 0.
class Leader final : public Base {
 public:
  Leader(Members members, std::string host) : Base(std::move(host)) {
    for (auto& [machine, member] : members) {
      std::string name = fmt::format("machine {} ({} at {})", machine, member.host, member.address);
      remotes_.push_back({machine, std::move(name), std::move(member), std::nullopt});
      remotes_.back().member.connection.reset_silence();
    }
  }

  void add_polls(std::vector<pollfd>& polls) const override {
    for (const RemoteMachine& remote : remotes_) add_poll(remote.member.connection, polls);
  }

  PeerRequest serve() override {
    PeerRequest request;
    const bool beat = beats();
    for (RemoteMachine& remote : remotes_) {
      if (beat) remote.member.connection.send({{"beat", true}});
      remote.member.connection.pump();
      try {
        while (const auto message = remote.member.connection.next()) take(*message, remote, request);
      } catch (const json::exception&) {
        remote.member.connection.close();
      }
      if (remote.end) continue;
      if (const std::string why = loss_of(remote.member.connection); !why.empty()) {
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
    send_to_all(to_json(Verdict{ExitCode::kWorkerFailed, report}));
    for (RemoteMachine& remote : remotes_) remote.member.connection.flush();
  }
  void leave() override {
    for (RemoteMachine& remote : remotes_) {
      remote.member.connection.send({{"refused", "it was asked to end"}, {"for_failure", true}});
      remote.member.connection.flush();
    }
  }
  [[nodiscard]] Members release() override {
    Members open;
    for (RemoteMachine& remote : remotes_) {
      if (remote.member.connection.is_open()) open.emplace(remote.machine, std::move(remote.member));
    }
    return open;
  }
  void on_hang() override { send_to_all({{"hangs", true}}); }
  void on_failure() override { send_to_all({{"failed", true}}); }
  void on_signal(int signal) override {
    was_interrupted_ = true;
    send_to_all({{"signal", signal}});
  }
  void on_end(const GroupOutcome& outcome) override {
    own_end_ = end_of(outcome, host_, began_at_ns_);
    conclude();
  }
  [[nodiscard]] bool is_over() const override {
    return verdict_ && (Clock::now() > last_messages_until_ ||
                        std::none_of(remotes_.begin(), remotes_.end(), [](const RemoteMachine& m) {
                          return m.member.connection.wants_to_write();
                        }));
  }

 private:
  struct RemoteMachine {
    int machine = 0;
    std::string name;
    Member member;
    std::optional<MachineEnd> end;
  };

  static void take(const json& message, RemoteMachine& remote, PeerRequest& request) {
    if (message.contains("hangs")) request.looks = true;
    if (message.contains("failed")) request.ends_now = true;
    if (message.contains("signal")) request.signal = signal_in(message);
    if (message.contains("leaves")) request.signal = SIGTERM;
    if (message.contains("end")) remote.end = end_in(message.at("end"));
  }

  void send_to_all(const json& message) {
    for (RemoteMachine& remote : remotes_) {
      remote.member.connection.send(message);
      remote.member.connection.pump();
    }
  }

  void conclude() {
    if (verdict_ || !own_end_ || !std::all_of(remotes_.begin(), remotes_.end(), [](const RemoteMachine& m) {
          return m.end.has_value();
        }))
      return;
    std::vector<MachineEnd> ends = {*own_end_};
    for (const RemoteMachine& remote : remotes_) ends.push_back(*remote.end);
    verdict_ = verdict_of(ends);
    verdict_->was_interrupted |= was_interrupted_;
    last_messages_until_ = Clock::now() + kLastMessagesTime;
    send_to_all(to_json(*verdict_));
  }

  std::vector<RemoteMachine> remotes_;
  std::optional<MachineEnd> own_end_;
  bool was_interrupted_ = false;
  Clock::time_point last_messages_until_;
};

/// Any other machine.
class Follower final : public Base {
 public:
  Follower(Connection connection, std::string host, std::string leader)
      : Base(std::move(host)), connection_(std::move(connection)), leader_(std::move(leader)) {
    connection_.reset_silence();
  }

  // A verdict may come before the workers of this machine have ended, and nothing is read after it.
  void add_polls(std::vector<pollfd>& polls) const override {
    if (!verdict_) add_poll(connection_, polls);
  }
  [[nodiscard]] Clock::time_point deadline() const override {
    return verdict_ ? Clock::now() + kBeat : Base::deadline();
  }

  PeerRequest serve() override {
    PeerRequest request;
    if (verdict_) return request;
    if (beats()) connection_.send({{"beat", true}});
    connection_.pump();
    try {
      while (const auto message = connection_.next()) {
        if (message->contains("hangs")) request.looks = true;
        if (message->contains("failed")) request.ends_now = true;
        if (message->contains("signal")) request.signal = signal_in(*message);
        if (!message->contains("verdict")) continue;
        const json& verdict = message->at("verdict");
        verdict_ = Verdict{static_cast<ExitCode>(verdict.at("code").get<int>()), verdict.at("report"),
                           verdict.at("futile_restarts"), verdict.at("was_interrupted"),
                           verdict.at("found_corrupt")};
        break;  // What follows is about the next attempt.
      }
    } catch (const json::exception&) {
      connection_.close();
    }
    if (verdict_ || loss_) return request;
    if (const std::string why = loss_of(connection_); !why.empty()) {
      connection_.close();
      loss_ = loss(leader_, why, connection_);
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
    connection_.send({{"end", to_json(MachineEnd{ExitCode::kWorkerFailed,
                                                 fmt::format("{} cannot begin: {}", host_, why), 0})}});
    connection_.flush();
  }
  void leave() override {
    connection_.send({{"leaves", true}});
    connection_.flush();
  }
  [[nodiscard]] Members release() override {
    Members open;
    if (connection_.is_open() || connection_.has_message())
      open.emplace(0, Member{std::move(connection_), leader_, "", 0, 0});
    return open;
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
    own_end_ = end_of(outcome, host_, began_at_ns_);
    connection_.send({{"end", to_json(*own_end_)}});
    connection_.pump();
    conclude_alone();
  }
  [[nodiscard]] bool is_over() const override { return verdict_.has_value(); }

 private:
  void conclude_alone() {
    if (loss_ && own_end_) verdict_ = verdict_of({*own_end_, *loss_});
  }

  Connection connection_;
  std::string leader_;
  std::optional<MachineEnd> own_end_;
  std::optional<MachineEnd> loss_;
};

}  // namespace

namespace {

/// The ranks of all machines that looked at theirs.
Hang all_of(const std::vector<MachineEnd>& ends) {
  Hang all;
  for (const MachineEnd& end : ends) {
    if (!end.hang) continue;
    all.timeout_s = std::max(all.timeout_s, end.hang->timeout_s);
    all.is_ours |= end.hang->is_ours;
    all.ranks.insert(all.ranks.end(), end.hang->ranks.begin(), end.hang->ranks.end());
  }
  return all;
}

Verdict verdict_without_signals(const std::vector<MachineEnd>& ends) {
  const MachineEnd* first = nullptr;
  for (const MachineEnd& end : ends) {
    if (!end.report.empty() && (first == nullptr || end.failed_at_ns < first->failed_at_ns)) first = &end;
  }
  if (first != nullptr && first->hang)
    return {ExitCode::kWorkerFailed, report_of(all_of(ends)), first->futile_restarts};
  if (first != nullptr)
    return {ExitCode::kWorkerFailed, first->report, first->futile_restarts, false, first->found_corrupt};
  const auto any = [&](ExitCode code) {
    return std::any_of(ends.begin(), ends.end(), [&](const MachineEnd& end) { return end.code == code; });
  };
  for (const ExitCode code : {ExitCode::kInterrupted, ExitCode::kTerminated, ExitCode::kHungUp}) {
    if (any(code)) return {code, ""};
  }
  const bool differ =
      std::any_of(ends.begin(), ends.end(), [&](const MachineEnd& e) { return e.code != ends.front().code; });
  if (!differ && ends.front().code != ExitCode::kWorkerFailed) return {ends.front().code, ""};
  return {ExitCode::kWorkerFailed,
          any(ExitCode::kPreempted) ? "some machines stopped for preemption and others did not"
                                    : "a rank failed, and no machine says which",
          2};
}

}  // namespace

Verdict verdict_of(const std::vector<MachineEnd>& ends) {
  Verdict verdict = verdict_without_signals(ends);
  verdict.was_interrupted =
      std::any_of(ends.begin(), ends.end(), [](const MachineEnd& end) { return end.was_interrupted; });
  return verdict;
}

MachineEnd end_of(const GroupOutcome& outcome, const std::string& host, std::int64_t began_at_ns) {
  MachineEnd end;
  end.code = exit_code_of_group(outcome);
  end.was_interrupted = is_asked_to_end(outcome);
  if (outcome.hang) {
    end.hang = outcome.hang;
    end.report = report_of(*outcome.hang);
    end.failed_at_ns = outcome.hung_at_ns - began_at_ns;
    end.futile_restarts = kUsualFutileRestarts;
  } else if (const WorkerOutcome* cause = root_cause(outcome)) {
    end.report = failure_report(outcome, *cause, host);
    end.failed_at_ns = time_of_failure(*cause) - began_at_ns;
    end.futile_restarts = futile_restarts(outcome, *cause);
    end.found_corrupt = found_corrupt(outcome, *cause);
  }
  return end;
}

std::unique_ptr<Cluster> lead(Members members, std::string host) {
  return std::make_unique<Leader>(std::move(members), std::move(host));
}

std::unique_ptr<Cluster> follow(Connection connection, std::string host, std::string leader) {
  return std::make_unique<Follower>(std::move(connection), std::move(host), std::move(leader));
}

}  // namespace accel::launch
