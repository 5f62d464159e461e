#include "core/launch/cluster/rendezvous_client.hpp"

#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "core/launch/cluster/authentication.hpp"
#include "core/launch/cluster/pending_connections.hpp"
#include "core/launch/cluster/rendezvous_messages.hpp"
#include "core/launch/cluster/run_secret.hpp"
#include "core/launch/cluster/wait_progress.hpp"
#include "core/launch/world/address.hpp"

namespace accel::launch {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

/// How long a step of the handshake may take. Machine 0 may have others to accept first.
constexpr auto kHandshakeTime = std::chrono::seconds(30);

/// Connects to machine 0, or sets `reason` to why that is not possible now.
std::optional<Connection> reach(const RendezvousParameters& parameters, std::string& reason) {
  std::vector<Address> addresses;
  try {
    addresses = look_up_within(kLookupTime, look_up, parameters.address);
  } catch (const Error& error) {
    reason = error.message();
    return std::nullopt;
  }
  for (Address& address : addresses) {
    port_of(address) = htons(static_cast<std::uint16_t>(parameters.port));
    auto [socket, error] = connect_to(address);
    if (socket) return Connection(std::move(socket), PendingConnections::kMostBytes);
    reason = std::strerror(error);
  }
  return std::nullopt;
}

void throw_if_refused(const json& message) {
  if (!message.contains("refused")) return;
  throw Error(message.value("for_failure", false) ? ErrorKind::kFailure : ErrorKind::kUsage,
              fmt::format("machine 0 refuses to begin: {}", message.value("refused", "")));
}

/// Waits for a message with this member. Without one the connection is closed, or the time is over.
std::optional<json> await_message(Connection& connection, const char* name) {
  const auto deadline = Clock::now() + kHandshakeTime;
  while (Clock::now() < deadline) {
    check_interrupted();
    while (std::optional<json> message = connection.next()) {
      throw_if_refused(*message);
      if (message->contains(name)) return message;
    }
    if (!connection.is_open()) return std::nullopt;
    pollfd ready{connection.fd(), POLLIN, 0};
    ::poll(&ready, 1, static_cast<int>(kTick.count()));
    connection.pump();
  }
  return std::nullopt;
}

/// A launcher that looks for machine 0.
class Client {
 public:
  explicit Client(const RendezvousParameters& parameters)
      : parameters_(parameters),
        where_(fmt::format("machine 0 at {}:{}", parameters.address, parameters.port)),
        secret_(parameters.secret) {}

  Membership join() {
    WaitProgress progress(parameters_.timeout_s, parameters_.first_report_s);
    std::string reason = "not tried yet";
    while (!progress.is_over()) {
      check_interrupted();
      if (std::optional<Connection> connection = reach(parameters_, reason)) {
        auto answer = begin_with(*connection);
        if (const auto* welcome = std::get_if<Welcome>(&answer)) return {std::move(*connection), *welcome};
        reason = std::get<std::string>(answer);
      }
      if (progress.is_due())
        log::info(fmt::format("waiting for {} ({}): {}", where_, progress.text(), reason));
      std::this_thread::sleep_for(kTick);
    }
    throw Error(ErrorKind::kFailure,
                fmt::format("{} is not reached within {:.0f} s: {}", where_, parameters_.timeout_s, reason))
        .hint("main_process_ip is the address of machine 0, where `accel launch` must run, too");
  }

  /// Waits until machine 0, which is connected, decides. It does at the end of its own time limit, or as soon
  /// as it has the beginning.
  std::variant<Welcome, std::string> await_answer(Connection& connection) {
    connection.reset_silence();
    while (connection.silence() < Seconds(parameters_.timeout_s + parameters_.answer_s)) {
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

 private:
  /// Proves who this launcher is, lets machine 0 prove the same, and waits for the answer; or says why that
  /// is not possible now.
  std::variant<Welcome, std::string> begin_with(Connection& connection) {
    try {
      const std::optional<json> challenge = await_message(connection, "challenge");
      if (!challenge) return why_silent(connection);
      Handshake handshake{challenge->at("challenge"), new_nonce(), challenge->at("version"),
                          parameters_.run_id};
      if (handshake.version != parameters_.version) {
        throw Error(ErrorKind::kUsage, fmt::format("{} has accel {}, and this machine has accel {}", where_,
                                                   handshake.version, parameters_.version));
      }
      if (!is_nonce(handshake.challenge)) return "it is not a launcher of accel";
      const bool is_known = has_secret();
      if (!is_known && !is_file_overdue())
        return fmt::format("'{}' is not there yet", parameters_.secret_file.string());
      connection.send(
          {{"hello", to_json(Hello{parameters_.version, parameters_.run_id, parameters_.host, handshake.nonce,
                                   proof_of(secret_, Role::kMember, handshake)})}});
      // Without a proof the hello lets machine 0 log who has come.
      if (!is_known) throw_without_file(connection);
      connection.pump();
      const std::optional<json> accepted = await_message(connection, "accepted");
      if (!accepted) return why_silent(connection);
      if (!is_proof(accepted->at("accepted").get<std::string>(), secret_, Role::kServer, handshake))
        throw_not_proved();
    } catch (const json::exception&) {
      return "it is not a launcher of accel";
    }
    connection.set_longest_message(Connection::kLongestMessage);
    connection.send({{"join", join_to_json(parameters_)}});
    connection.flush();
    return await_answer(connection);
  }

  static std::string why_silent(const Connection& connection) {
    if (connection.is_garbled()) return "it is not a launcher of accel";
    return connection.is_open() ? "it does not answer" : "it closed the connection";
  }

  /// Reads the secret, if there is one and it is not known yet. A network file system may show a new file
  /// after a while; machine 0, which has answered, has written it.
  bool has_secret() {
    if (!secret_.empty() || parameters_.secret_file.empty()) return true;
    if (std::optional<std::string> found = read_run_secret(parameters_.secret_file)) {
      secret_ = *std::move(found);
      return true;
    }
    if (!missing_since_) missing_since_ = Clock::now();
    return false;
  }

  [[nodiscard]] bool is_file_overdue() const {
    constexpr auto kFileTime = std::chrono::seconds(10);
    return Clock::now() - *missing_since_ > kFileTime;
  }

  [[noreturn]] void throw_without_file(Connection& connection) const {
    connection.flush();
    throw Error(ErrorKind::kUsage,
                fmt::format("'{}' is not the directory that machine 0 has there: it has no file '{}'",
                            parameters_.secret_file.parent_path().string(),
                            parameters_.secret_file.filename().string()))
        .hint("the output_dir of a run on several machines is on a file system that all of them share");
  }

  [[noreturn]] void throw_not_proved() const {
    throw Error(
        ErrorKind::kUsage,
        fmt::format("{} has not proved that it knows the secret of this run, which is in {}", where_,
                    parameters_.secret_file.empty() ? "ACCEL_RUN_SECRET" : parameters_.secret_file.string()))
        .hint(
            "another program listens there, or machine 0 has another secret: ACCEL_RUN_SECRET is the same on "
            "all machines, and otherwise they share the output_dir");
  }

  /// Reads what machine 0 sends: a welcome, or why there is none. Nothing if it sends nothing yet.
  std::optional<std::variant<Welcome, std::string>> answer_in(Connection& connection) {
    while (const std::optional<json> message = connection.next()) {
      throw_if_refused(*message);
      if (message->contains("over")) return message->at("over").get<std::string>();
      if (message->contains("waiting")) {
        for (const std::string& line : split(message->value("waiting", ""), '\n')) log::info(line);
      }
      if (!message->contains("welcome")) continue;
      try {
        return welcome_from_json(message->at("welcome"), parameters_);
      } catch (Error& error) {
        error.add_context(fmt::format("{} sent a welcome that does not fit this run", where_));
        throw;
      }
    }
    return std::nullopt;
  }

  const RendezvousParameters& parameters_;
  std::string where_;
  std::string secret_;
  std::optional<Clock::time_point> missing_since_;
};

}  // namespace

Membership join(const RendezvousParameters& parameters) { return Client(parameters).join(); }

std::variant<Membership, std::string> rejoin(Connection connection, const RendezvousParameters& parameters) {
  try {
    auto answer = Client(parameters).await_answer(connection);
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
